"""Manages a run in progress: its lock, inbox, abort, deadline and usage."""
