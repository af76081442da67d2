"""A run's result with its structured answer as an instance of the class that the agent was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from langgraph.graph.state import CompiledStateGraph

from graph_agent.compiled import AgentStateGraph
from graph_agent.context import AgentContext
from graph_agent.session.results import RunResult


def typed_result(
    result: RunResult, graph: CompiledStateGraph[Any, Any, Any, Any], context: AgentContext | Mapping[str, Any] | None
) -> RunResult:
    """Return the result with an instance in place of the plain JSON that the state holds.

    A run that brings a JSON schema of its own (`response_schema`) keeps the plain JSON, and so does another graph.

    Args:
        result: The result as the state has it.
        graph: The compiled graph.
        context: What the run brought.
    """
    brought: Any = context if isinstance(context, Mapping) else dict(context or ())
    if brought.get("response_schema") is not None or not isinstance(graph.builder, AgentStateGraph):
        return result
    shape = graph.builder.response
    if shape is None:
        return result
    return replace(result, structured_response=shape.instance(result.structured_response))
