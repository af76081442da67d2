"""Helpers that do not depend on the agent domain."""
