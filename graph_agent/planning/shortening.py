"""Making a request shorter that a model cannot read whole: by its older part, or by the length of tools' results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from langchain_core.messages import AnyMessage
from langchain_core.messages.utils import count_tokens_approximately

from graph_agent.planning.compaction import compact
from graph_agent.tools.result_cuts import cuts_for, with_cuts

_CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Shortening:
    """What to leave out of requests from now on."""

    kept_from: str | None = None
    """Id of the first message that is kept whole; None where nothing is dropped."""
    cuts: dict[str, int] = field(default_factory=dict)
    """Result's message id → characters to keep."""


def shorten(messages: Sequence[AnyMessage], window: int | None = None) -> Shortening | None:
    """Find what to leave out of a request that is too long.

    The older part goes where that makes the request shorter by a quarter at least. Where it does not, because the
    newest results are most of the request, they are cut. What is found makes the request shorter by an estimate, so
    that a caller who asks again and again comes to an end.

    Args:
        messages: The request as it was sent.
        window: Tokens the model can read; None where that is not known.

    Returns:
        None when nothing more can be left out.
    """
    whole = count_tokens_approximately(messages)
    enough = whole * 3 // 4 if window is None else min(whole * 3 // 4, window)
    dropped = compact(messages, window)
    left = count_tokens_approximately(dropped.messages) if dropped is not None else whole
    if dropped is not None and left <= enough:
        return Shortening(dropped.kept_from)
    target = min(whole // 2, whole if window is None else window * 3 // 4)
    cuts = cuts_for(messages, (whole - target) * _CHARS_PER_TOKEN)
    cut = count_tokens_approximately(with_cuts(messages, cuts)) if cuts else whole
    if cut <= enough or (dropped is None and cut < whole):
        return Shortening(cuts=cuts)
    if dropped is None:
        return None
    further = cuts_for(dropped.messages, (left - target) * _CHARS_PER_TOKEN)
    return Shortening(dropped.kept_from, further)
