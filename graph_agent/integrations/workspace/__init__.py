"""Exports tools for files and commands in one folder; commands need the extra `workspace`."""
