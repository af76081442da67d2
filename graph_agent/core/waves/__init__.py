"""Handles structured plans: the schema of a wave, references between its calls, and parsing of replies."""
