"""Exports the agent file: an agent declared in YAML, which is validated and opened.

`open_agent` is imported on first access, so that reading a file loads no part of LangGraph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graph_agent.agent_file.spec import AgentSpec, load_spec

if TYPE_CHECKING:
    from graph_agent.agent_file.factory import open_agent

__all__ = ["AgentSpec", "load_spec", "open_agent"]


def __getattr__(name: str) -> Any:
    if name != "open_agent":
        raise AttributeError(f"module 'graph_agent.spec' has no attribute {name!r}")
    from graph_agent.agent_file.factory import open_agent

    return open_agent
