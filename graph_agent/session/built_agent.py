"""The agent behind a compiled graph: its builder and its own state fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph.graph.state import CompiledStateGraph

if TYPE_CHECKING:
    from graph_agent.compiled import AgentStateGraph
    from graph_agent.state.own_fields import OwnFields


def builder_of(graph: CompiledStateGraph[Any, Any, Any, Any]) -> AgentStateGraph | None:
    """Return the builder of an agent; None for a graph of another package."""
    from graph_agent.compiled import AgentStateGraph  # loaded with the first agent, and not needed to import `Session`

    return graph.builder if isinstance(graph.builder, AgentStateGraph) else None


def own_fields_of(graph: CompiledStateGraph[Any, Any, Any, Any]) -> OwnFields:
    """Return the own state fields of an agent; none for a graph of another package."""
    from graph_agent.state.own_fields import NO_OWN_FIELDS  # as above

    builder = builder_of(graph)
    return NO_OWN_FIELDS if builder is None else builder.own
