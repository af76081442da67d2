"""Locks sessions with files and with advisory locks of PostgreSQL."""
