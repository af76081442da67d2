"""Metrics and readiness checks."""
