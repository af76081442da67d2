"""Counts token usage: its arithmetic, its estimate, and the usage of model calls whose replies are dropped.

A request may cause further model calls: one that was cut off, one whose reply middleware dropped, one that middleware
made itself. The code that makes such a call records it here, and the sender of the request adds it to its usage.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.utils import count_tokens_approximately

from graph_agent.settings.config import LoopConfig
from graph_agent.types import NO_USAGE, Usage

ESTIMATED = "graph_agent_usage_estimated"
"""Key in `response_metadata` of a reply whose usage is an estimate."""


def add_usage(left: Usage | None, right: Usage | None) -> Usage:
    """Reducer of ``usage``: the field-wise sum, or only the right value if it is `fresh`."""
    left, right = left or NO_USAGE, right or NO_USAGE
    if "fresh" in right:
        left = NO_USAGE
    usage: Usage = {
        "input_tokens": left["input_tokens"] + right["input_tokens"],
        "output_tokens": left["output_tokens"] + right["output_tokens"],
        "total_tokens": left["total_tokens"] + right["total_tokens"],
        "model_calls": left["model_calls"] + right["model_calls"],
    }
    if "cost" in left or "cost" in right:
        usage["cost"] = left.get("cost", 0.0) + right.get("cost", 0.0)
    return usage


def less_usage(usage: Usage, counted: Usage) -> Usage:
    """Return the field-wise difference, at least 0 in each field."""
    difference: Usage = {
        "input_tokens": max(0, usage["input_tokens"] - counted["input_tokens"]),
        "output_tokens": max(0, usage["output_tokens"] - counted["output_tokens"]),
        "total_tokens": max(0, usage["total_tokens"] - counted["total_tokens"]),
        "model_calls": max(0, usage["model_calls"] - counted["model_calls"]),
    }
    if "cost" in usage:
        difference["cost"] = max(0.0, usage["cost"] - counted.get("cost", 0.0))
    return difference


def fresh(usage: Usage) -> Usage:
    """Return the write that resets ``usage`` to this value."""
    return {**usage, "fresh": True}


_COUNTS = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}


@dataclass(slots=True)
class TimedRequest:
    """One request to a model, measured from its construction; recorded by `end`."""

    model: str
    """Name of the model as configured, or its kind."""
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    duration_s: float = 0.0
    """Seconds to the end of the reply, or to the error."""
    first_token_s: float | None = None
    """Seconds to the first token; None if the reply was not streamed."""
    reply: AIMessage | None = None
    """The reply; of a request that was cut off, what had arrived. None after an error."""
    error: str = ""
    """Kind of the model's error, or `cancelled`; empty for a complete reply."""
    _since: float = field(default_factory=time.monotonic)

    _is_nested: bool = False

    @classmethod
    def to(cls, model: Any) -> Self:
        """Start to measure a request to a model."""
        name = _name_of(model) or getattr(model, "_llm_type", "") or type(model).__name__
        return cls(name, _is_nested=getattr(model, "sends_requests", False))

    def receive(self) -> None:
        """Record the time of the first token."""
        if self.first_token_s is None:
            self.first_token_s = time.monotonic() - self._since

    def end(self, reply: AIMessage | None, error: str = "") -> None:
        """Record the request for the code within `metered`, with its reply or its error."""
        self.duration_s, self.reply, self.error = time.monotonic() - self._since, reply, error
        if not self._is_nested and (extra := _extra_usage.get()) is not None:
            extra.timed.append(self)


@dataclass(slots=True)
class ExtraUsage:
    """Model calls of one request other than the one that returned its reply."""

    replies: list[AIMessage] = field(default_factory=list)
    """Replies that are not counted elsewhere, with their usage."""
    cut_off: AIMessage | None = None
    """The reply among them that was cut off; None if there is none."""
    uncalled: int = 0
    """Number of replies that are counted elsewhere but did not come from a model."""
    timed: list[TimedRequest] = field(default_factory=list)
    """Every request to a model, also of replies that are counted elsewhere."""


_extra_usage: ContextVar[ExtraUsage | None] = ContextVar("graph_agent_extra_usage", default=None)


@contextmanager
def metered() -> Iterator[ExtraUsage]:
    """Collect the calls recorded for the request that is sent within the context."""
    extra = ExtraUsage()
    token = _extra_usage.set(extra)
    try:
        yield extra
    finally:
        _extra_usage.reset(token)


def record_replies(replies: Sequence[AIMessage], *, uncalled: int = 0) -> None:
    """Record replies that the request does not return.

    Args:
        uncalled: Number of returned replies that did not come from a model.
    """
    if (extra := _extra_usage.get()) is not None:
        extra.replies += replies
        extra.uncalled += uncalled


def record_cut_off(
    model: Any,
    request: Sequence[BaseMessage],
    options: Mapping[str, Any],
    text: str = "",
    reported: UsageMetadata | None = None,
) -> AIMessage | None:
    """Record a call that was cut off; return the part of its reply, with its usage, or None outside `metered`.

    Args:
        text: The received text of its reply.
        reported: Usage that the provider has reported so far; None if there is none.
    """
    if (extra := _extra_usage.get()) is None:
        return None
    extra.cut_off = cut_off_reply(request, text, reported, model=_name_of(model), tools=options.get("tools"))
    extra.replies.append(extra.cut_off)
    return extra.cut_off


def _name_of(model: Any) -> str:
    name = getattr(model, "model_name", None) or getattr(model, "model", None)
    return name if isinstance(name, str) else ""


def with_usage(
    reply: AIMessage,
    request: Sequence[BaseMessage],
    settings: LoopConfig,
    tools: Sequence[dict[str, Any]] | None = None,
) -> AIMessage:
    """Complete the usage of a reply: estimated if it reports none, or zeros, and a budget needs it.

    Args:
        request: The request it answers.
        settings: Usage is estimated only with a `max_tokens_total` or a `max_cost`.
        tools: The offered tools; None if there are none.
    """
    reported: Mapping[str, Any] | None = reply.usage_metadata
    if reported is not None and not reported.keys() >= _COUNTS.keys():
        # LangChain gives a reply from a model's cache only its cost.
        return reply.model_copy(update={"usage_metadata": {**_COUNTS, **reported}})
    # Some servers report zeros.
    is_reported = reported is not None and reported["total_tokens"] > 0
    if is_reported or (settings.max_tokens_total is None and settings.max_cost is None):
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
        text: The reply's text so far; empty if unknown.
        reported: The provider's figures so far; None if there is none. They cover at most the start of the reply.
        model: The model's name, for its price; empty if unknown.
        tools: The offered tools; None if there are none.
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
