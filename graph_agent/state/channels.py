"""The session's status: which changes there are, and a channel that takes no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph.channels import LastValue
from langgraph.errors import InvalidUpdateError

from graph_agent.events.types import StoredEvent, event
from graph_agent.types import SessionStatus

ENDED = frozenset(SessionStatus) - {SessionStatus.CREATED, SessionStatus.RUNNING}
"""The statuses an input can end in; new input takes each back to `RUNNING`."""

NEXT: dict[SessionStatus, frozenset[SessionStatus]] = {
    SessionStatus.CREATED: frozenset({SessionStatus.RUNNING}),
    SessionStatus.RUNNING: ENDED,
    **{ended: frozenset({SessionStatus.RUNNING}) for ended in ENDED},
}
"""Status → the statuses it may change to."""


def status_event(before: str, after: str, step: int) -> StoredEvent:
    """The `status` event of a change.

    Args:
        before: The status the session has.
        after: The status it gets.
        step: The step it happens in.

    Raises:
        InvalidUpdateError: When there is no such change.
    """
    check_change(before, after)
    return event("status", step, **{"from": str(before), "to": str(after)})


def check_change(before: str, after: str) -> None:
    """Refuse a change that the session's states do not have.

    Raises:
        InvalidUpdateError: With both statuses, and the ones that could follow.
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
    """Holds the status, and refuses a write that is no allowed change; writing the same one again is no change."""

    def update(self, values: Sequence[Any]) -> bool:
        """Take the new status; True when there was one.

        Raises:
            InvalidUpdateError: On a change that there is not.
        """
        for value in values:
            before = self.value if self.is_available() else SessionStatus.CREATED
            if value != before:
                check_change(before, value)
        return super().update(values)
