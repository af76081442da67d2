"""Cuts a reply where the model goes on with a tool result or turns that it invents, and describes the dropped part."""

from __future__ import annotations

from typing import Any, NamedTuple

from langchain_core.messages import AIMessage

from graph_agent.base._internal.text import excerpt
from graph_agent.base.finish import UNENDED, cut_off
from graph_agent.models.sanitize import with_text
from graph_agent.models.wire.parsing.tags import MARKUP
from graph_agent.models.wire.parsing.turns import ProseEnd, invented_length


class EndedReply(NamedTuple):
    """A reply without the part that the model invented after it, and the number of removed characters (0 if none)."""

    message: AIMessage
    invented: int = 0


def ended_at(reply: AIMessage, end: int | None) -> EndedReply:
    """Return a reply cut at an index of its text, with the number of removed characters that the model invented.

    If the removed part is an invented tool result or turn, not only tokens that end a turn, the kept part is complete,
    so finish reasons that report a cut-off are removed from the metadata.

    Args:
        reply: The reply.
        end: The index; None to keep the whole reply.
    """
    text = reply.text
    if end is None:
        return EndedReply(reply)
    message, invented = with_text(reply, text[:end]), invented_length(text, end)
    if invented:
        whole = {key: value for key, value in reply.response_metadata.items() if not _reports_cut_off(key, value)}
        message = message.model_copy(update={"response_metadata": whole})
    return EndedReply(message, invented)


def ended_prose(reply: AIMessage, begin: int = 0, *, turns: bool, markup: bool) -> EndedReply:
    """Return a reply cut at the first tool result or turn that the model invented, or at the markup of a call;
    unchanged if it has none.

    Args:
        reply: The reply.
        begin: Index in its text at which the search begins.
        turns: Whether to search for invented tool results and turns.
        markup: Whether to search for markup such as `<tool_call>`.
    """
    if not turns and not markup:
        return EndedReply(reply)
    end = ProseEnd(turns=turns, markup=MARKUP if markup else "").end(reply.text[begin:])
    return ended_at(reply, None if end is None else begin + end)


def invention_warning(model: str, invented: int) -> str:
    """Return the warning that a model went on with an invented result or turn, which was dropped.

    Args:
        model: The model's name.
        invented: Number of dropped characters.
    """
    return (
        f"The model {model} wrote on after its reply, with a call, or as a tool or a user would; these {invented:,} "
        "characters were dropped, and no call in them was run."
    )


_TAIL = 6_000
"""Characters at the end of a reply that are searched for a repetition."""
_LEAST_TIMES, _LEAST_CHARS = 6, 300


class Repetition(NamedTuple):
    """A text that a reply repeats to its end, and the number of repetitions."""

    text: str
    times: int


def repetition_at_end(text: str) -> Repetition | None:
    """Return the shortest text that a reply repeats to its end; None if there is none.

    It must occur at least 6 times and fill at least 300 of the last 6,000 characters. Use it only for replies that were
    cut off at the maximum length, because a complete list, table or song may repeat itself, too. Takes linear time.
    """
    tail = text[-_TAIL:].rstrip()[::-1]
    # The failure function of Knuth, Morris and Pratt gives the period of each beginning of the reversed text.
    border, length, period = [0] * (len(tail) + 1), 0, 0
    best = 0
    for at in range(1, len(tail)):
        while length and tail[at] != tail[length]:
            length = border[length]
        length += tail[at] == tail[length]
        border[at + 1] = length
        size, repeated = at + 1, at + 1 - length
        if size >= max(_LEAST_CHARS, _LEAST_TIMES * repeated):
            best, period = size, repeated
    return Repetition(tail[:period][::-1], best // period) if period and tail[:period].strip() else None


def repetition_warning(repetition: Repetition) -> str:
    """Return the warning about an answer that repeats itself to its end."""
    shown = excerpt(" ".join(repetition.text.split()), 80)
    return f"The answer repeats the same text {repetition.times} times at its end: {shown!r}. {REPEATED}"


REPEATED = "A higher temperature, a repetition penalty or another model avoids it."
"""Advice for the developer about an answer that repeats itself."""


def _reports_cut_off(key: str, value: Any) -> bool:
    """Whether an entry of `response_metadata` states that the reply was cut off."""
    return key == UNENDED or cut_off(AIMessage("", response_metadata={key: value})) is not None
