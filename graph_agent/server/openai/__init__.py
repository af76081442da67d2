"""Implements OpenAI's Chat Completions API: routes, requests and responses."""
