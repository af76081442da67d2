"""Adapts agents to durable execution engines: the engine dispatches and retries; the checkpointer holds the state.

Needs the extra `restate`.
"""

from importlib import import_module

from graph_agent.base._internal.extras import missing_extra

try:
    for _name in ("restate", "hypercorn"):
        import_module(_name)
except ImportError as missing:
    raise missing_extra("graph_agent.engines", "restate", missing) from None
