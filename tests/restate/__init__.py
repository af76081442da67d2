"""Agents behind a real Restate server, with workers that are killed. `make restate` runs these tests."""
