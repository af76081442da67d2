"""Configurations to run agents in production."""
