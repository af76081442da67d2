"""The ways in from outside: servers, the command line, editors and engines."""
