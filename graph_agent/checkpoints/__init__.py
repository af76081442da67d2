"""Checkpoints: savers and stores in SQLite, PostgreSQL and memory, their format, fences, index and pruning."""
