"""Implements the command line: commands, control of sessions, and handling of Ctrl-C."""
