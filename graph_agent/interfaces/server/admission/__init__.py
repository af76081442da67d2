"""Admits requests by keys, origins and limits, and returns errors for refused ones."""
