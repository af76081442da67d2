"""The session's status: its allowed transitions, and a channel that refuses others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph.channels import LastValue
from langgraph.errors import InvalidUpdateError

from graph_agent.events.types import StoredEvent, event
from graph_agent.types import SessionStatus

ENDED = frozenset(SessionStatus) - {SessionStatus.CREATED, SessionStatus.RUNNING}
"""The statuses in which an input can end; new input changes each to `RUNNING`."""

NEXT: dict[SessionStatus, frozenset[SessionStatus]] = {
    SessionStatus.CREATED: frozenset({SessionStatus.RUNNING}),
    SessionStatus.RUNNING: ENDED,
    **{ended: frozenset({SessionStatus.RUNNING}) for ended in ENDED},
}
"""Status → allowed next statuses."""


def status_event(before: str, after: str, step: int) -> StoredEvent:
    """Return the `status` event of a transition.

    Args:
        before: The current status.
        after: The new status.
        step: The step of the transition.

    Raises:
        InvalidUpdateError: If the transition is not allowed.
    """
    check_change(before, after)
    return event("status", step, **{"from": str(before), "to": str(after)})


def check_change(before: str, after: str) -> None:
    """Refuse a transition that is not in `NEXT`.

    Raises:
        InvalidUpdateError: With both statuses and the allowed ones.
    """
    try:
        allowed = NEXT[SessionStatus(before)]
        known = SessionStatus(after)
    except ValueError:
        raise InvalidUpdateError(f"{after!r} is no session status; known: {', '.join(SessionStatus)}.") from None
    if known not in allowed:
        raise InvalidUpdateError(
            f"A session that is {before} cannot become {after}; it can become {', '.join(sorted(allowed))}."
        )


class StatusChannel(LastValue[str]):
    """Holds the status and refuses invalid transitions; a write of the current status is allowed."""

    def update(self, values: Sequence[Any]) -> bool:
        """Set the new status; return whether there was a write.

        Raises:
            InvalidUpdateError: For a transition that is not allowed.
        """
        for value in values:
            before = self.value if self.is_available() else SessionStatus.CREATED
            if value != before:
                check_change(before, value)
        return super().update(values)
