"""Defines the agent's state graph and compiled graph, which locks the session and sets the run's durability."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graph_agent.base._internal.lazy import lazy_names

if TYPE_CHECKING:
    from graph_agent.session.compiled import AgentStateGraph as AgentStateGraph
    from graph_agent.session.compiled import CompiledAgentGraph
    from graph_agent.session.compiled import CompileOptions as CompileOptions
    from graph_agent.session.compiled import PushedMessages as PushedMessages

__all__ = ["CompiledAgentGraph"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "graph_agent.session.compiled": "AgentStateGraph CompileOptions CompiledAgentGraph PushedMessages",
    },
)
