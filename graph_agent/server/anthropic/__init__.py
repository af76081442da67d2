"""Anthropic's messages: routes, requests and responses."""
