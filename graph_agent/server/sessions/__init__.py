"""Serves sessions over HTTP: history, control, and streams of new events."""
