"""Implements Anthropic's Messages API: routes, requests and responses."""
