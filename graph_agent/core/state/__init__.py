"""Holds the state of a session: what checkpoints store, and its run in memory with lock, inbox, deadline and usage."""
