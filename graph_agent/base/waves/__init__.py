"""Defines structured plans: the schema of a wave, and the references between its calls."""
