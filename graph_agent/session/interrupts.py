"""Assignment of a person's answers to interrupts, and validation of decisions on calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.types import Interrupt

from graph_agent.approvals.decisions import DEFAULT_DECIDER, EditFault, read_decisions
from graph_agent.approvals.requests import calls_of_request, is_approval_request
from graph_agent.errors import InputError

_INTERRUPT_ID = re.compile(r"[0-9a-f]{32}")


def answers_by_id(answer: Any, asked: Sequence[Interrupt]) -> dict[str, Any]:
    """Return answers by interrupt id.

    LangGraph would use an answer without an id for the next interrupt, which may be another one.

    Args:
        answer: The person's answer, or a mapping of interrupt id → answer, which is returned unchanged.
        asked: The session's open interrupts.

    Raises:
        InputError: When no interrupt is open, when the answer names only interrupts that are not open, or when several
            are open and the answer names none.
    """
    if not asked:
        raise InputError(
            f"The session has no open interrupt for the answer {answer!r}; resume without an answer, or run an input."
        )
    known = ", ".join(f"{interrupt.id}: {interrupt.value!r}" for interrupt in asked)
    if _is_by_id(answer):
        if answer.keys().isdisjoint(interrupt.id for interrupt in asked):
            raise InputError(f"The answers {answer!r} match no interrupt that is open; open: {known}.")
        return dict(answer)
    if len({interrupt.id for interrupt in asked}) > 1:
        raise InputError(f"Several interrupts are open; answer with a mapping of id to answer. Open: {known}.")
    return {asked[0].id: answer}


def checked_decisions(
    answers: Mapping[str, Any],
    open_interrupts: Sequence[Interrupt],
    own_calls: Sequence[str],
    edit_fault: EditFault | None,
    decided_by: str | None,
) -> dict[str, Any]:
    """Validate the answers to approval requests before the session is resumed; other answers are unchanged.

    Args:
        answers: Interrupt id → the person's answer; for an approval request as for `read_decisions`.
        open_interrupts: The session's open interrupts.
        own_calls: Ids of the calls of the agent's own request; the request of a delegate has others.
        edit_fault: Checks the call of an edit of the agent's own calls; None for no check.
        decided_by: Name of the person, for the history; None for the name in the answer, or `user`.

    Returns:
        The answers, with the person's name in those to approval requests.

    Raises:
        InputError: When an answer does not fit its request.
    """
    requests = {each.id: each.value for each in open_interrupts if is_approval_request(each.value)}
    checked = dict(answers)
    for id_ in answers.keys() & requests.keys():
        calls, answer = calls_of_request(requests[id_]), answers[id_]
        own = requests[id_]["call_ids"] == list(own_calls)
        decided = read_decisions(calls, answer, edit_fault if own else None)
        given = answer if isinstance(answer, Mapping) and "decisions" in answer else {"decisions": answer}
        # An empty mapping of decisions is invalid, so there is at least one.
        checked[id_] = {**given, "decided_by": decided_by or (decided[0].by if decided else DEFAULT_DECIDER)}
    return checked


def _is_by_id(answer: Any) -> bool:
    """Whether LangGraph interprets an answer as a mapping by interrupt id."""
    return (
        isinstance(answer, Mapping)
        and bool(answer)
        and all(isinstance(key, str) and _INTERRUPT_ID.fullmatch(key) for key in answer)
    )
