"""Serves one agent over HTTP: OpenAI's and Anthropic's chat APIs, A2A, and control of sessions."""
