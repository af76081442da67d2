"""Exports the agent's compiled graph and its state graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graph_agent.base._internal.lazy import lazy_names

if TYPE_CHECKING:
    from graph_agent.session.compile_options import CompileOptions as CompileOptions
    from graph_agent.session.compiled import AgentStateGraph as AgentStateGraph
    from graph_agent.session.compiled import CompiledAgentGraph
    from graph_agent.session.compiled import PushedMessages as PushedMessages
    from graph_agent.session.graph_agent import GraphAgent
    from graph_agent.session.graph_agent import GraphAgentBuilder as GraphAgentBuilder

__all__ = ["CompiledAgentGraph", "GraphAgent"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "graph_agent.session.compile_options": "CompileOptions",
        "graph_agent.session.compiled": "AgentStateGraph CompiledAgentGraph PushedMessages",
        "graph_agent.session.graph_agent": "GraphAgent GraphAgentBuilder",
    },
)
