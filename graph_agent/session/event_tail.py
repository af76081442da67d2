"""Reading of the newest events of a session, in a time that does not depend on the length of its history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from graph_agent.events.types import StoredEvent

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

_MAX_CHECKPOINTS = 1000
"""Checkpoints to walk back before the whole history is read instead."""


async def read_tail(
    saver: BaseCheckpointSaver[Any],
    newest: CheckpointTuple,
    whole: Callable[[], Awaitable[list[StoredEvent]]],
    *,
    last: int | None = None,
    after: int = -1,
    pending: bool = False,
) -> tuple[int, list[StoredEvent]]:
    """Return the newest events up to a checkpoint.

    The writes of the checkpoint's ancestors are read, newest first. Their number before a plan is in the bookkeeping
    that the plan wrote. The whole history is read instead if the ancestors reach back to a full copy of it, or if a
    person has overwritten it.

    Args:
        saver: The saver.
        newest: The checkpoint.
        whole: Reads the whole history.
        last: Maximum number of events; None for all after `after`.
        after: Only events with a higher index.
        pending: Whether the writes of the newest checkpoint itself count, as in a session's current state.

    Returns:
        The index of the first event, and the events.
    """

    def begin(total: int) -> int:
        return min(total, max(after + 1, 0 if last is None else total - last))

    unfinished = _written(newest) if pending else []
    batches: list[list[StoredEvent]] = [unfinished or []]
    at, count = newest, len(batches[0])
    total = None if not pending or (counted := _counted(newest)) is None else counted + count
    for _ in range(_MAX_CHECKPOINTS if unfinished is not None else 0):
        if "events" in at.checkpoint["channel_values"]:
            break
        if at.parent_config is None:
            total = count
        elif total is None or count < total - begin(total):
            before = await saver.aget_tuple(at.parent_config)
            batch = _written(before) if before is not None else None
            if before is None or batch is None:
                break
            batches.append(batch)
            count += len(batch)
            if total is None and (counted := _counted(before)) is not None:
                total = counted + count
            at = before
        if total is not None and count >= total - begin(total):
            events = [event for batch in reversed(batches) for event in batch]
            return begin(total), events[count - (total - begin(total)) :]
    events = await whole()
    return begin(len(events)), events[begin(len(events)) :]


def _written(at: CheckpointTuple) -> list[StoredEvent] | None:
    """Return the events that the steps after a checkpoint wrote; None if one of them set the whole history."""
    writes = [value for _, channel, value in at.pending_writes or [] if channel == "events"]
    return [event for write in writes for event in write] if all(isinstance(each, list) for each in writes) else None


def _counted(at: CheckpointTuple) -> int | None:
    """Return the number of events at a checkpoint if a plan that began there has counted them.

    Other steps write the count of an earlier plan, which the checkpoint itself holds, too.
    """
    held = _count_in(at.checkpoint["channel_values"].get("loop"))
    written = [_count_in(value) for _, channel, value in at.pending_writes or [] if channel == "loop"]
    return next((count for count in written if count is not None and count != held), None)


def _count_in(bookkeeping: Any) -> int | None:
    count = bookkeeping.get("events_before") if isinstance(bookkeeping, dict) else None
    return count if isinstance(count, int) else None
