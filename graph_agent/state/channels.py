"""The channels of the state: the status with its transitions, and growing lists stored as deltas."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Self

from langchain_core.messages import AnyMessage, BaseMessage, BaseMessageChunk, RemoveMessage
from langgraph.channels import DeltaChannel, LastValue
from langgraph.checkpoint.base import PendingWrite
from langgraph.errors import InvalidUpdateError
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Overwrite

from graph_agent._compat import messages_delta_reducer
from graph_agent._compat.deltas import let_channels_decide_on_copies
from graph_agent.events.types import StoredEvent, event
from graph_agent.types import SessionStatus

let_channels_decide_on_copies()

ENDED = frozenset(SessionStatus) - {SessionStatus.CREATED, SessionStatus.RUNNING}
"""The statuses in which an input can end; new input changes each to `RUNNING`."""

NEXT: dict[SessionStatus, frozenset[SessionStatus]] = {
    SessionStatus.CREATED: frozenset({SessionStatus.RUNNING}),
    SessionStatus.RUNNING: ENDED,
    **{ended: frozenset({SessionStatus.RUNNING}) for ended in ENDED},
}
"""Status → allowed next statuses."""


SNAPSHOT_EVERY = 1000
"""Minimum number of updates between two full copies of a delta channel; see `GrowingDelta`."""
_MOST_STEPS = 10_000
"""Maximum supersteps between two full copies: LangGraph's SQLite saver reads them by one query with a parameter for
each and for both delta channels, and SQLite's default maximum is 32,766 parameters."""
_ID = attrgetter("id")


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


class GrowingDelta(DeltaChannel[list[Any]]):
    """A delta channel of a list that writes a full copy after the list has doubled, and at least every `_MOST_STEPS`.

    LangGraph's own rule is a fixed number of updates, with which the copies soon take more space than the updates.
    """

    copied = 0
    """Length of the list in the last full copy before the run; 0 before the first."""

    def copy(self) -> Self:
        """Return a channel that shares the list, which is never modified in place."""
        new = self.__class__(self.reducer, self.typ, snapshot_frequency=self.snapshot_frequency)
        new.key, new.value, new.copied = self.key, self.value, self.copied
        return new

    def from_checkpoint(self, checkpoint: Any) -> Self:
        """Restore the channel from a full copy."""
        new = super().from_checkpoint(checkpoint)
        new.copied = len(new.value)
        return new

    def is_copy_due(self, updates: int, supersteps: int) -> bool:
        """Whether to write a full copy now.

        LangGraph asks several times about one copy, so the answer changes nothing. After a copy, `updates` begins at 0.

        Args:
            updates: Number of updates since the last full copy.
            supersteps: Number of supersteps since then.
        """
        if not self.is_available():
            return False
        has_doubled = updates >= self.snapshot_frequency and len(self.value) >= 2 * self.copied
        return has_doubled or supersteps >= _MOST_STEPS


class MessagesChannel(GrowingDelta):
    """The delta channel of ``messages``: add, replace by id, remove by id, and remove all.

    LangGraph's delta reducer ignores ``REMOVE_ALL_MESSAGES`` and indexes the whole history at each write. The channel
    keeps it as its reducer because LangGraph assigns message ids only if it is set (see ``_compat``).
    """

    def __init__(
        self,
        reducer: Any = messages_delta_reducer,
        typ: type[list[AnyMessage]] | None = None,
        *,
        snapshot_frequency: int = SNAPSHOT_EVERY,
    ) -> None:
        super().__init__(reducer, typ, snapshot_frequency=snapshot_frequency)
        self._ids: tuple[Any, set[str | None]] = (None, set())
        """A history and the ids in it, so that a write does not read the whole history."""

    def update(self, values: Sequence[Any]) -> bool:
        """Apply one superstep's writes to the history; return whether there were any."""
        if isinstance(self.value, list) and (new := self._only_new(self.value, values)) is not None:
            if new:
                self.value = [*self.value, *new]
                self._ids[1].update(map(_ID, new))
                self._ids = self.value, self._ids[1]
            return bool(values)
        return super().update(_resets(values))

    def _only_new(self, state: list[AnyMessage], values: Sequence[Any]) -> list[AnyMessage] | None:
        """Return the written messages if all are new; None if the reducer must apply them."""
        new: list[Any] = []
        for value in values:
            new.extend(value) if isinstance(value, list) else new.append(value)
        if not new:
            return new
        ids = set()
        for message in new:
            if not isinstance(message, BaseMessage) or isinstance(message, BaseMessageChunk | RemoveMessage):
                return None
            ids.add(message.id)
        if self._ids[0] is not state:
            self._ids = state, set(map(_ID, state))
        if None in ids or len(ids) != len(new) or not ids.isdisjoint(self._ids[1]):
            return None
        return new

    def replay_writes(self, writes: Sequence[PendingWrite]) -> None:
        """Rebuild the history from stored writes, oldest first."""
        values = _resets([value for _, _, value in writes], live=False)
        super().replay_writes([("", self.key, value) for value in values])


def _resets(values: Sequence[Any], *, live: bool = True) -> list[Any]:
    """Replace each "remove all" by an `Overwrite` with the messages after it, which the base channel supports."""
    folded: list[Any] = []
    for value in values:
        items = value if isinstance(value, list) else [value]
        cut = max((i for i, item in enumerate(items) if _removes_all(item)), default=None)
        if cut is None:
            folded.append(value)
            continue
        if live:
            # Within a superstep the base channel keeps only an overwrite, so earlier writes are dropped.
            folded.clear()
        folded.append(Overwrite(messages_delta_reducer([], [items[cut + 1 :]])))
    if live and len(folded) > 1 and isinstance(folded[0], Overwrite):
        return [Overwrite(messages_delta_reducer(folded[0].value, folded[1:]))]
    return folded


def _removes_all(item: Any) -> bool:
    return isinstance(item, RemoveMessage) and item.id == REMOVE_ALL_MESSAGES
