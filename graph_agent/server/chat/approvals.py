"""Approval requests as chat messages, and the requests that answer them.

A question of a request without a session ends with a marker that names its thread: the client sends the question back
with its next message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.types import Interrupt, StateSnapshot

from graph_agent._internal.text import as_text
from graph_agent.approvals.requests import request_of
from graph_agent.approvals.text import question_text
from graph_agent.session.results import open_interrupts, waiting_for

_MARKER = re.compile(r"\[approval ([0-9a-f]{24})\]\s*")


def open_request(state: StateSnapshot) -> Interrupt | None:
    """Return the open approval request to answer next; None if the session waits for no approval."""
    interrupts = open_interrupts(state)
    return next((each for each in interrupts if request_of(each) is not None), None)


def question_of(interrupts: Sequence[Interrupt], token: str | None) -> str:
    """Return the question that open interrupts ask a person; empty without interrupts.

    Only the first approval request is asked about; others of the same session follow when it is answered.

    Args:
        interrupts: The open interrupts.
        token: Name of the thread of a request without a session; None for a session.
    """
    if waiting_for(interrupts) != "approval":
        return "\n\n".join(as_text(each.value) for each in interrupts)
    question = next(question_text(request) for each in interrupts if (request := request_of(each)) is not None)
    return question if token is None else f"{question}\n[approval {token}]"


def is_repeated(interrupts: Sequence[Interrupt]) -> bool:
    """Whether the question is asked again, because the answer to it was none."""
    return any("error" in (request_of(each) or ()) for each in interrupts)


def parked_question(messages: Sequence[AnyMessage]) -> str | None:
    """Return the thread's name in the question that a conversation's last messages answer; None for no question."""
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            found = _MARKER.search(message.text[-60:])
            return found[1] if found is not None and message.text.endswith(found[0]) else None
        if not isinstance(message, HumanMessage):
            return None
    return None
