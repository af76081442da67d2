"""Calls to remote agents over A2A."""
