"""Removes old checkpoints: the plan, the stored values it needs, and its execution in SQLite and PostgreSQL."""
