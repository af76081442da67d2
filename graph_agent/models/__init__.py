"""Adapts chat models: resolution, capabilities, requests, retries, streaming and scripted models."""
