"""Finds the agent behind a compiled graph: its builder and its own state fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from graph_agent.base.errors import ConfigError

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


def check_session_graph(graph: CompiledStateGraph[Any, Any, Any, Any]) -> None:
    """Raise `ConfigError` for a graph of another package with an agent in a node, whose events no session of it has."""
    if builder_of(graph) is not None:
        return
    for node, inner in graph.get_subgraphs():
        if builder_of(cast("CompiledStateGraph[Any, Any, Any, Any]", inner)) is not None:
            raise ConfigError(
                f"Session(graph, …): the graph {graph.name!r} is no agent, and its node {node!r} runs one, whose "
                "events, status and notes a session of the outer graph does not have. Call the graph itself, with "
                f"ainvoke() or astream(); or let the node {node!r} run a session of the agent: see the guide 'An agent "
                "in another graph' (docs/guides/subgraphs.md)."
            )


def custom_state_of(graph: CompiledStateGraph[Any, Any, Any, Any]) -> CustomState:
    """Return the state fields that the user has added to an agent; no fields for a graph of another package."""
    from graph_agent.core.state.custom_state import NO_OWN_FIELDS  # as above

    builder = builder_of(graph)
    return NO_OWN_FIELDS if builder is None else builder.own
