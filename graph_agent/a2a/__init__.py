"""Agents over A2A: `client` calls remote agents, `server` serves our agents to A2A clients.

a2a-sdk, from the extra `server`, implements the protocol; only this package imports it.
"""
