"""Exports what the tests of an agent need: models without a provider, assertions on calls, and recordings."""
