"""Holds the settings of an agent and of a run: config, context, budgets and response format."""
