"""Finds the agent behind a compiled graph: its builder and its own state fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

    from graph_agent.core.state.custom_state import CustomState
    from graph_agent.session.compiled import AgentStateGraph


NO_SAVER = (
    "This agent stores no sessions; pass checkpointer=… to create_graph_agent(), such as InMemorySaver() of "
    "langgraph.checkpoint.memory, or a saver of graph_agent.persistence.open_saver(). agent.run(…) runs an input "
    "without a session; a run with on_approval=… needs no checkpointer."
)
"""The text of the error for an agent without a checkpointer, where one is needed."""


def builder_of(graph: CompiledStateGraph[Any, Any, Any, Any]) -> AgentStateGraph | None:
    """Return the builder from which an agent's graph was compiled; None for a graph of another package."""
    from graph_agent.session.compiled import (
        AgentStateGraph,  # loaded with the first agent, and not needed to import `Session`
    )

    return graph.builder if isinstance(graph.builder, AgentStateGraph) else None


def custom_state_of(graph: CompiledStateGraph[Any, Any, Any, Any]) -> CustomState:
    """Return the state fields that the user has added to an agent; no fields for a graph of another package."""
    from graph_agent.core.state.custom_state import NO_OWN_FIELDS  # as above

    builder = builder_of(graph)
    return NO_OWN_FIELDS if builder is None else builder.own
