"""Runs server processes: start, workers and supervision."""
