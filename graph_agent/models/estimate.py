"""Estimated usage of model calls whose provider reports none, so that token and cost budgets still apply."""

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
    """Add estimated usage to a reply that reports none, if a budget needs it.

    Args:
        reply: The model's reply.
        request: The request it answers.
        settings: Usage is estimated only with a `max_tokens_total` or a `max_cost`.
        tools: The offered tools; None for none.
    """
    if reply.usage_metadata is not None or (settings.max_tokens_total is None and settings.max_cost is None):
        return reply
    used = estimated_usage(request, reply, tools)
    return reply.model_copy(
        update={"usage_metadata": used, "response_metadata": {**reply.response_metadata, ESTIMATED: True}}
    )


def cut_off_reply(
    request: Sequence[BaseMessage],
    text: str,
    reported: UsageMetadata | None,
    *,
    model: str = "",
    tools: Sequence[dict[str, Any]] | None = None,
) -> AIMessage:
    """Build the partial message of a reply that was cut off, with its usage as reported so far, else estimated.

    Args:
        request: The request.
        text: The reply's text so far; empty if unknown.
        reported: The provider's figures so far; None for none. They cover at most the start of the reply.
        model: The model's name, for its price; empty if unknown.
        tools: The offered tools; None for none.
    """
    used = estimated_usage(request, AIMessage(text), tools)
    asked = (reported["input_tokens"] if reported else 0) or used["input_tokens"]
    answered = max(reported["output_tokens"] if reported else 0, used["output_tokens"] if text else 0)
    # Details, such as cached input tokens, are the provider's.
    figures = UsageMetadata(
        **{**(reported or used), "input_tokens": asked, "output_tokens": answered, "total_tokens": asked + answered}
    )
    return AIMessage(text, usage_metadata=figures, response_metadata={"model_name": model, ESTIMATED: True})


def estimated_usage(
    request: Sequence[BaseMessage], reply: BaseMessage, tools: Sequence[dict[str, Any]] | None = None
) -> UsageMetadata:
    """Estimate the tokens of a request and its reply, at about four characters per token."""
    asked = count_tokens_approximately(request, tools=list(tools) if tools else None)
    answered = count_tokens_approximately([reply])
    return UsageMetadata(input_tokens=asked, output_tokens=answered, total_tokens=asked + answered)
