"""Adapters to chat models: resolution, capabilities, requests, retries, streaming and scripted models."""
