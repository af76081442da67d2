"""Savers, pruning, locks of sessions, and inputs that run once."""
