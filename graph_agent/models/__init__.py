"""Adapters to chat models: what they can do, how they are named, how they are scripted."""
