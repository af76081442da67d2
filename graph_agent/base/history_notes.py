"""Marks notes: messages that stand in for removed messages in a request, and were written by neither user nor model."""

from __future__ import annotations

from langchain_core.messages import BaseMessage, HumanMessage

NOTE_MARK = "graph_agent_note"
"""Key in `additional_kwargs` of a note.

Only a note that begins an input, as a compacted conversation does, is stored.

The value is `SUMMARY` for a model's summary, which later notes contain in full, and `KEPT` for kept results, which are
added to each shortened conversation anew; else True.
"""
SUMMARY = "summary"
KEPT = "kept"

NOTE_HEAD = (
    "[A note, not the user's words: the beginning of this conversation is left out, because the whole is longer than "
    "you can read. What was in it, in short, the newest last:"
)


def summary_note(text: str) -> HumanMessage:
    """Return the note that holds a model's summary, in the form of every note."""
    return HumanMessage(f"{NOTE_HEAD}\n{text}]", additional_kwargs={NOTE_MARK: SUMMARY})


def is_note(message: BaseMessage) -> bool:
    """Whether a message of a request is a note in place of removed messages."""
    return bool(message.additional_kwargs.get(NOTE_MARK))


def is_kept_note(message: BaseMessage) -> bool:
    """Whether a message of a request is the note with kept results."""
    return message.additional_kwargs.get(NOTE_MARK) == KEPT
