"""Defines the graph's state: schema, channels, and functions over its messages."""
