"""Usage of the model calls of one request that is not in its reply.

A request may cause further model calls: one that was cut off, one whose reply middleware dropped, one that middleware
made itself. The code that makes such a call records it here, and the sender of the request adds it to its usage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata

from graph_agent.models.estimate import cut_off_reply


@dataclass(slots=True)
class ExtraUsage:
    """Model calls of one request other than the one that returned its reply."""

    replies: list[AIMessage] = field(default_factory=list)
    """Replies that are not counted elsewhere, with their usage."""
    cut_off: AIMessage | None = None
    """The reply among them that was cut off; None for none."""
    uncalled: int = 0
    """Number of replies that are counted elsewhere but did not come from a model."""


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
        replies: The replies.
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
) -> None:
    """Record a call that was cut off.

    Args:
        model: The model.
        request: The messages.
        options: The options of the call.
        text: The received text of its reply.
        reported: Usage that the provider has reported so far; None for none.
    """
    if (extra := _extra_usage.get()) is None:
        return
    name = getattr(model, "model_name", None) or getattr(model, "model", None)
    named = name if isinstance(name, str) else ""
    extra.cut_off = cut_off_reply(request, text, reported, model=named, tools=options.get("tools"))
    extra.replies.append(extra.cut_off)
