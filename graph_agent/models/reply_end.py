"""Cuts a reply where the model goes on with a tool result or turns that it invents, and describes the dropped part."""

from __future__ import annotations

from typing import Any, NamedTuple

from langchain_core.messages import AIMessage

from graph_agent.models.finish import UNENDED, cut_off
from graph_agent.models.sanitize import with_text
from graph_agent.parsing.turns import ProseEnd, invented_length


class EndedReply(NamedTuple):
    """A reply up to an invention, and the length of the invention in characters."""

    message: AIMessage
    invented: int = 0


def ended_at(reply: AIMessage, end: int | None) -> EndedReply:
    """Cut the text of a reply at an index; None leaves it whole.

    The part before an invention is complete, so the reply loses a finish reason that reports a cut-off.
    """
    text = reply.text
    if end is None:
        return EndedReply(reply)
    message, invented = with_text(reply, text[:end]), invented_length(text, end)
    if invented:
        whole = {key: value for key, value in reply.response_metadata.items() if not _reports_cut_off(key, value)}
        message = message.model_copy(update={"response_metadata": whole})
    return EndedReply(message, invented)


def ended_prose(reply: AIMessage, begin: int = 0) -> EndedReply:
    """Cut a reply whose text is no call at the first invented turn behind an index."""
    end = ProseEnd().end(reply.text[begin:])
    return ended_at(reply, None if end is None else begin + end)


def invention_warning(model: str, invented: int) -> str:
    """Return the warning about an invention that was dropped."""
    return (
        f"The model {model} wrote on after its reply, as a tool or a user would; these {invented:,} characters were "
        "dropped, and no call in them was run."
    )


def _reports_cut_off(key: str, value: Any) -> bool:
    return key == UNENDED or cut_off(AIMessage("", response_metadata={key: value})) is not None
