"""Shows approval requests as chat messages, and reads the requests that answer them.

A question of a request without a session ends with a marker that names its thread: the client sends the question back
with its next message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.types import Interrupt, StateSnapshot

from graph_agent._internal.text import as_text
from graph_agent.approvals.requests import calls_of_request, is_single_call, request_of
from graph_agent.approvals.text import question_text
from graph_agent.server.problems import ProblemError
from graph_agent.session.interrupts import joint_question
from graph_agent.session.results import open_interrupts, waiting_for

_MARKER = re.compile(r"\[approval ([0-9a-f]{24})\]\s*")


def open_question(state: StateSnapshot) -> Interrupt | None:
    """Return the first open question that a message can answer; None without one, or if client calls are open."""
    interrupts = open_interrupts(state)
    return interrupts[0] if waiting_for(interrupts) == "answer" else None


def question_of(interrupts: Sequence[Interrupt], token: str | None, refused: str = "") -> str:
    """Return the question that open interrupts ask a person (see `joint_question`); empty without interrupts.

    Args:
        interrupts: The open interrupts.
        token: Name of the thread of a request without a session; None for a session.
        refused: Why the previous answer was refused; empty if there is none.
    """
    if not interrupts:
        return ""
    _, asked = joint_question(interrupts)
    if waiting_for(interrupts) != "approval":
        return as_text(asked)
    question = question_text({**asked, "error": refused} if refused else asked)
    return question if token is None else f"{question}\n[approval {token}]"


def waiting_approvals(interrupts: Sequence[Interrupt], token: str | None) -> list[dict[str, Any]]:
    """Return the calls of all open approval requests, as in `ChatOutcome.approvals`."""
    return [
        {"token": token, "interrupt": each.id, "index": index, "name": call["name"], "arguments": call["arguments"]}
        for each in interrupts
        if (request := request_of(each)) is not None
        for index, call in enumerate(calls_of_request(request))
    ]


def answers_to_approvals(
    interrupts: Sequence[Interrupt], decisions: Mapping[tuple[str, int], dict[str, Any]]
) -> dict[str, Any]:
    """Return the decisions on single calls as answers by interrupt id; calls without a decision are asked about again.

    Args:
        interrupts: The open interrupts.
        decisions: Start of an interrupt's id, and index of a call in its request → decision.

    Raises:
        ProblemError: If a decision belongs to no call that waits, or if a request that takes all decisions at once has
            calls without one.
    """
    answers: dict[str, Any] = {}
    remaining = dict(decisions)
    for each in interrupts:
        if (request := request_of(each)) is None:
            continue
        calls = calls_of_request(request)
        decided = {
            index: remaining.pop(key) for index in range(len(calls)) if (key := (each.id[:8], index)) in remaining
        }
        if not decided:
            continue
        if is_single_call(each.value):
            answers[each.id] = decided[0]
        elif "call_ids" in request:
            answers[each.id] = {"decisions": {calls[index]["id"]: decision for index, decision in decided.items()}}
        elif len(decided) == len(calls):
            answers[each.id] = {"decisions": list(decided.values())}
        else:
            raise ProblemError("invalid", f"{len(calls)} calls wait together; decide all of them at once.")
    if remaining:
        raise ProblemError(
            "invalid",
            "An approval response belongs to no call that waits. The call is decided already, or the id is wrong; "
            "GET /sessions/{id} lists the open questions of a session.",
        )
    return answers


def pending_question(messages: Sequence[AnyMessage]) -> str | None:
    """Return the thread's name in the question that a conversation's last messages answer; None for no question."""
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            found = _MARKER.search(message.text[-60:])
            return found[1] if found is not None and message.text.endswith(found[0]) else None
        if not isinstance(message, HumanMessage):
            return None
    return None
