"""What a model call used where its provider does not say, so that a budget of tokens or money still holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.utils import count_tokens_approximately

from graph_agent.config import LoopConfig

ESTIMATED = "graph_agent_usage_estimated"
"""Key in `response_metadata` of a reply whose usage is an estimate."""


def with_usage(
    reply: AIMessage,
    request: Sequence[BaseMessage],
    settings: LoopConfig,
    tools: Sequence[dict[str, Any]] | None = None,
) -> AIMessage:
    """A reply with the tokens it took: the provider's own figures, or an estimate where a budget needs one.

    Args:
        reply: The model's reply.
        request: What it answers.
        settings: Without a `max_tokens_total` or a `max_cost` nothing is estimated.
        tools: The tools that were offered; None for none.
    """
    if reply.usage_metadata is not None or (settings.max_tokens_total is None and settings.max_cost is None):
        return reply
    used = estimated_usage(request, reply, tools)
    return reply.model_copy(
        update={"usage_metadata": used, "response_metadata": {**reply.response_metadata, ESTIMATED: True}}
    )


def usage_until(
    request: Sequence[BaseMessage],
    said: str,
    reported: UsageMetadata | None,
    *,
    model: str = "",
    tools: Sequence[dict[str, Any]] | None = None,
) -> AIMessage:
    """What there is of a reply that was cut off, with the tokens it took: as far as the provider told, else estimated.

    Args:
        request: What it was to answer.
        said: Its text so far; empty where nothing is known of it.
        reported: The provider's figures so far; None for none. Of the reply they know its beginning at most.
        model: The model's name, for its price; empty for unknown.
        tools: The tools that were offered; None for none.
    """
    used = estimated_usage(request, AIMessage(said), tools)
    asked = (reported["input_tokens"] if reported else 0) or used["input_tokens"]
    answered = max(reported["output_tokens"] if reported else 0, used["output_tokens"] if said else 0)
    # Details, such as how much of the request came from a cache, are the provider's own.
    figures = UsageMetadata(
        **{**(reported or used), "input_tokens": asked, "output_tokens": answered, "total_tokens": asked + answered}
    )
    return AIMessage(said, usage_metadata=figures, response_metadata={"model_name": model, ESTIMATED: True})


def estimated_usage(
    request: Sequence[BaseMessage], reply: BaseMessage, tools: Sequence[dict[str, Any]] | None = None
) -> UsageMetadata:
    """Tokens of a request and its reply, about four characters each."""
    asked = count_tokens_approximately(request, tools=list(tools) if tools else None)
    said = count_tokens_approximately([reply])
    return UsageMetadata(input_tokens=asked, output_tokens=said, total_tokens=asked + said)
