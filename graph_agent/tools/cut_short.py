"""What is said of a call that an abort or a deadline cut short: what is known of it, and nothing else."""

from __future__ import annotations

from typing import Literal

from graph_agent.events.types import ResultStatus

Cause = Literal["abort", "deadline"]

_BECAUSE: dict[Cause, str] = {
    "abort": "the run was stopped",
    "deadline": "the time for this input ran out",
}


def cut_short(cause: Cause, *, begun: bool, writes: bool) -> tuple[str, ResultStatus]:
    """The result of a call that was cut short, and its status.

    Args:
        cause: What cut it short.
        begun: Whether it had been begun.
        writes: Whether it may change something.
    """
    because = _BECAUSE[cause]
    if not begun:
        return f"Not run: {because} before this call was begun.", "skipped"
    text = f"Stopped before it had finished: {because}. {effect_text(writes=writes)}"
    return text, "unknown" if writes else "error"


def effect_text(*, writes: bool) -> str:
    """What is known of the effect of a call that was stopped before its end, as one sentence.

    Args:
        writes: Whether the call may change something.
    """
    if not writes:
        return "It only reads, so nothing was changed."
    return "It is not known whether it took effect; check before repeating it."
