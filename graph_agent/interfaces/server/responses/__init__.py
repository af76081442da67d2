"""Implements OpenAI's Responses API."""
