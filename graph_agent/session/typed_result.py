"""Conversion of a result's structured answer to the class of the agent's `response_format`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from langgraph.graph.state import CompiledStateGraph

from graph_agent.context import AgentContext
from graph_agent.session.built_agent import builder_of
from graph_agent.session.run_result import RunResult


def typed_result(
    result: RunResult, graph: CompiledStateGraph[Any, Any, Any, Any], context: AgentContext | Mapping[str, Any] | None
) -> RunResult:
    """Return the result with an instance in place of the plain JSON of the state.

    The plain JSON stays for a run whose context has a `response_schema`, and for graphs of other packages.

    Args:
        result: The result, read from the state.
        graph: The compiled graph.
        context: The run's context.
    """
    values: Any = context if isinstance(context, Mapping) else dict(context or ())
    builder = builder_of(graph)
    schema = builder.response if builder is not None else None
    if schema is None or values.get("response_schema") is not None:
        return result
    return replace(result, structured_response=schema.instance(result.structured_response))
