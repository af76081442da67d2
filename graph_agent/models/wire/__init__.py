"""Describes how the endpoint of a model must be asked and read: one table of rules, and pure functions over it."""
