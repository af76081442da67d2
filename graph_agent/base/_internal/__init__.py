"""Holds helpers that do not depend on the agent domain."""
