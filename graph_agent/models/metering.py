"""What the model calls behind one request used, beside the reply that it came to.

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
class Beside:
    """What was noted of one request."""

    replies: list[AIMessage] = field(default_factory=list)
    """Replies that nobody else counts, with the tokens they took."""
    cut_off: AIMessage | None = None
    """That one of them which was cut off; None for none."""
    uncalled: int = 0
    """Replies that are counted elsewhere, and that no model gave."""


_of_request: ContextVar[Beside | None] = ContextVar("graph_agent_beside", default=None)


@contextmanager
def metered() -> Iterator[Beside]:
    """While within, gather what is noted of the request that is sent."""
    beside = Beside()
    token = _of_request.set(beside)
    try:
        yield beside
    finally:
        _of_request.reset(token)


def note_replies(replies: Sequence[AIMessage], *, uncalled: int = 0) -> None:
    """Note replies that the request did not come to, and how many that it did come to no model gave."""
    if (beside := _of_request.get()) is not None:
        beside.replies += replies
        beside.uncalled += uncalled


def note_cut_off(
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
    if (beside := _of_request.get()) is None:
        return
    name = getattr(model, "model_name", None) or getattr(model, "model", None)
    named = name if isinstance(name, str) else ""
    beside.cut_off = usage_until(request, said, reported, model=named, tools=options.get("tools"))
    beside.replies.append(beside.cut_off)
