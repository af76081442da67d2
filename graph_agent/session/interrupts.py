"""Assignment of a person's answers to interrupts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.types import Interrupt

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


def _is_by_id(answer: Any) -> bool:
    """Whether LangGraph interprets an answer as a mapping by interrupt id."""
    return (
        isinstance(answer, Mapping)
        and bool(answer)
        and all(isinstance(key, str) and _INTERRUPT_ID.fullmatch(key) for key in answer)
    )
