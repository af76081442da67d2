"""What the model calls behind one request used, extra the reply that it came to.

A request may take more than the call whose reply is returned: one that was cut off, one whose reply middleware has
thrown away, one that middleware made by itself. Whoever makes such a call notes it here; whoever sent the request
counts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata

from graph_agent.models.estimate import usage_until


@dataclass(slots=True)
class ExtraUsage:
    """What was noted of one request."""

    replies: list[AIMessage] = field(default_factory=list)
    """Replies that nobody else counts, with the tokens they took."""
    cut_off: AIMessage | None = None
    """That one of them which was cut off; None for none."""
    uncalled: int = 0
    """Replies that are counted elsewhere, and that no model gave."""


_extra_usage: ContextVar[ExtraUsage | None] = ContextVar("graph_agent_extra_usage", default=None)


@contextmanager
def metered() -> Iterator[ExtraUsage]:
    """While within, gather what is noted of the request that is sent."""
    extra = ExtraUsage()
    token = _extra_usage.set(extra)
    try:
        yield extra
    finally:
        _extra_usage.reset(token)


def note_replies(replies: Sequence[AIMessage], *, uncalled: int = 0) -> None:
    """Note replies that the request did not come to, and how many that it did come to no model gave."""
    if (extra := _extra_usage.get()) is not None:
        extra.replies += replies
        extra.uncalled += uncalled


def record_cut_off(
    model: Any,
    request: Sequence[BaseMessage],
    options: Mapping[str, Any],
    said: str = "",
    reported: UsageMetadata | None = None,
) -> None:
    """Note a call that was cut off.

    Args:
        model: What was asked.
        request: The messages it was sent.
        options: The options of the call.
        said: What was heard of its reply.
        reported: What the provider has told of its tokens until then; None for nothing.
    """
    if (extra := _extra_usage.get()) is None:
        return
    name = getattr(model, "model_name", None) or getattr(model, "model", None)
    named = name if isinstance(name, str) else ""
    extra.cut_off = usage_until(request, said, reported, model=named, tools=options.get("tools"))
    extra.replies.append(extra.cut_off)
