"""Exports the protocol of loop hooks and the built-in hooks."""
