"""Stores sessions in SQLite, PostgreSQL and memory: savers, stores, format, fences, index and pruning."""
