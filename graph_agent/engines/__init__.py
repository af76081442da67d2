"""Adapts agents to durable execution engines: the engine dispatches and retries; the checkpointer holds the state.

Needs the extra `restate`.
"""
