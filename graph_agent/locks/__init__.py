"""Locks on sessions: files, and advisory locks of PostgreSQL."""
