"""A person's answers, each for the question it is an answer to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.types import Interrupt

from graph_agent.errors import InputError

_INTERRUPT_ID = re.compile(r"[0-9a-f]{32}")


def answers_by_id(answer: Any, asked: Sequence[Interrupt]) -> dict[str, Any]:
    """Answers by the ids of their interrupts.

    LangGraph keeps an answer without an id for whatever question comes next, which may be another one.

    Args:
        answer: What the person said; a mapping of interrupt id → answer is taken as it is.
        asked: The session's open interrupts.

    Raises:
        InputError: When nothing is asked, when the answer is only to questions that are not open, or when it is not
            said which of several it is an answer to.
    """
    if not asked:
        raise InputError(
            f"The session asks nothing, and was given the answer {answer!r}; resume it without, or give it an input."
        )
    known = ", ".join(f"{interrupt.id}: {interrupt.value!r}" for interrupt in asked)
    if _is_by_id(answer):
        if answer.keys().isdisjoint(interrupt.id for interrupt in asked):
            raise InputError(f"None of the answers {answer!r} is to an interrupt that is open; open: {known}.")
        return dict(answer)
    if len({interrupt.id for interrupt in asked}) > 1:
        raise InputError(f"Several interrupts are open; answer with a mapping of id to answer. Open: {known}.")
    return {asked[0].id: answer}


def _is_by_id(answer: Any) -> bool:
    """Whether LangGraph takes an answer for a mapping of interrupt ids."""
    return (
        isinstance(answer, Mapping)
        and bool(answer)
        and all(isinstance(key, str) and _INTERRUPT_ID.fullmatch(key) for key in answer)
    )
