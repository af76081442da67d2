"""Marks notes: messages that stand in for removed messages in a request, and were written by neither user nor model."""

from __future__ import annotations

from langchain_core.messages import BaseMessage, HumanMessage

NOTE_MARK = "graph_agent_note"
"""Key in `additional_kwargs` of a note, a message that replaces removed messages in a request.

The value is `SUMMARY` for a model's summary, which later notes contain in full, `KEPT` for kept results, which are
added to each shortened conversation anew, and True for any other note. Only a note that begins an input, as a compacted
conversation does, is stored.
"""
SUMMARY = "summary"
"""Value of `NOTE_MARK` for a summary that a model wrote."""
KEPT = "kept"
"""Value of `NOTE_MARK` for results that are kept in full."""

NOTE_HEAD = (
    "[A note, not the user's words: the beginning of this conversation is left out, because the whole is longer than "
    "you can read. What was in it, in short, the newest last:"
)
"""Text with which each note begins."""


def summary_note(text: str) -> HumanMessage:
    """Return the note that holds a summary written by a model; `text` is the summary."""
    return HumanMessage(f"{NOTE_HEAD}\n{text}]", additional_kwargs={NOTE_MARK: SUMMARY})


def is_note(message: BaseMessage) -> bool:
    """Whether a message of a request is a note, i.e. replaces removed messages."""
    return bool(message.additional_kwargs.get(NOTE_MARK))


def is_kept_note(message: BaseMessage) -> bool:
    """Whether a message of a request is the note with results that are kept in full."""
    return message.additional_kwargs.get(NOTE_MARK) == KEPT
