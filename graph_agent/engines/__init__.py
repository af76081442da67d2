"""Adapters for durable execution engines: the engine dispatches, owns and retries; the checkpointer holds the state."""
