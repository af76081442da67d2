"""What one run brings to its agent: tools of the caller's own, words for the system prompt, the shape of its answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from langgraph.runtime import Runtime

from graph_agent._internal.lru import Bounded
from graph_agent.context import AgentContext, coerce_context
from graph_agent.deps import AgentParts
from graph_agent.response_format import ResponseSchema

_MOST_KEPT = 64
_MOST_CHARS = 2_000_000
"""Characters of what runs brought that is kept for others that bring the same, the newest's aside."""


def parts_of_run(parts: AgentParts, runtime: Runtime[Any]) -> AgentParts:
    """The agent's parts with what a run brings; the agent's own where it brings nothing.

    Args:
        parts: The agent.
        runtime: The runtime of one of the run's nodes.

    Raises:
        ConfigError: When a caller's tool has the name of another, or the response schema is none.
    """
    context = coerce_context(runtime.context, parts.context_schema)
    if context is None:
        return parts
    tools = [context.client_tools, context.client_calls]
    if not (any(tools) or context.instructions or context.response_schema):
        return parts
    chosen = [context.client_tool_choice, context.parallel_client_calls]
    brought = [*tools, *chosen, context.instructions, context.response_schema]
    key = json.dumps(brought, sort_keys=True)
    if key not in parts.variants:
        _make_room(parts.variants, len(key))
        parts.variants[key] = _with(parts, context)
    return parts.variants[key]


def _make_room(kept: dict[str, AgentParts], chars: int) -> None:
    while kept and (len(kept) >= _MOST_KEPT or sum(map(len, kept)) + chars > _MOST_CHARS):
        kept.pop(next(iter(kept)))


def _with(parts: AgentParts, context: AgentContext) -> AgentParts:
    if context.client_tools or context.client_calls:
        toolbox = parts.toolbox.with_client_tools(context.client_tools, context.client_calls)
        # The instructions that are kept name the tools, where calls are asked for in text.
        parts = replace(
            parts,
            toolbox=toolbox,
            client_tool_choice=context.client_tool_choice,
            parallel_client_calls=context.parallel_client_calls,
            _instructions=Bounded(),
        )
        parts = replace(parts, client=parts.offering(parts.client)).without(toolbox.withdrawn)
    if context.instructions:
        # The instructions that are kept hold these, and go with them.
        parts = replace(parts, system_prompt=_below(parts.system_prompt, context.instructions), _instructions=Bounded())
    if context.response_schema is not None:
        parts = replace(parts, response=ResponseSchema(context.response_schema))
    return parts


def _below(own: Callable[[], str], added: str) -> Callable[[], str]:
    def both() -> str:
        prompt = own()
        return f"{prompt}\n\n{added}" if prompt else added

    return both
