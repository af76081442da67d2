"""Exports the public names of a graph-based agent framework on LangGraph.

The public names are imported on first access, so that `import graph_agent` loads no model provider.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graph_agent.agent import build_graph, create_graph_agent
    from graph_agent.delegates.a2a_delegate import A2ADelegate
    from graph_agent.delegates.graph_delegate import GraphDelegate
    from graph_agent.hooks.protocol import LoopHook, LoopPlan, RequestPatch
    from graph_agent.models.scripted import ScriptedChatModel
    from graph_agent.parsing.call import idempotency_key
    from graph_agent.session.history import SessionMemory
    from graph_agent.session.results import RunResult
    from graph_agent.session.session import Session
    from graph_agent.settings.config import AgentContext, LoopConfig
    from graph_agent.types import SessionStatus

__all__ = [
    "A2ADelegate",
    "AgentContext",
    "GraphDelegate",
    "LoopConfig",
    "LoopHook",
    "LoopPlan",
    "RequestPatch",
    "RunResult",
    "ScriptedChatModel",
    "Session",
    "SessionMemory",
    "SessionStatus",
    "build_graph",
    "create_graph_agent",
    "idempotency_key",
]

_MODULES = {
    "A2ADelegate": "delegates.a2a_delegate",
    "AgentContext": "settings.config",
    "GraphDelegate": "delegates.graph_delegate",
    "LoopConfig": "settings.config",
    "LoopHook": "hooks.protocol",
    "LoopPlan": "hooks.protocol",
    "RequestPatch": "hooks.protocol",
    "RunResult": "session.results",
    "ScriptedChatModel": "models.scripted",
    "Session": "session.session",
    "SessionMemory": "session.history",
    "SessionStatus": "types",
    "build_graph": "agent",
    "create_graph_agent": "agent",
    "idempotency_key": "parsing.call",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'graph_agent' has no attribute {name!r}")
    from graph_agent._internal.garbage import paused_collection  # here, as a pytest plugin loads this package

    with paused_collection():
        value = getattr(importlib.import_module(f"graph_agent.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
