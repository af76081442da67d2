"""Runs an agent on cases, checks each run, and compares agents on the same cases."""
