"""Serves agents to clients: over HTTP, on the command line, in editors and in engines."""
