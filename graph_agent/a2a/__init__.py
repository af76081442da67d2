"""Agents over A2A, both ways: `client` calls agents elsewhere, `server` lets any A2A client call ours.

The protocol itself is a2a-sdk's; it comes with the extra `server`, and nothing outside this package imports it.
"""
