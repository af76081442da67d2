"""Reads a session's events incrementally."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from graph_agent.state.events import StoredEvent
from graph_agent.state.lengths import CheckedWrites, lengths_of

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
    from langgraph.graph.state import CompiledStateGraph


_MAX_TAIL_CHECKPOINTS = 1000
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

    The writes of the checkpoint's ancestors are read, newest first. Their number before a plan is in the loop state
    that the plan wrote. The whole history is read instead if the ancestors reach back to a full copy of it, or if a
    person has overwritten it.

    Args:
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
    for _ in range(_MAX_TAIL_CHECKPOINTS if unfinished is not None else 0):
        if "events" in at.checkpoint["channel_values"]:
            break
        if at.parent_config is None:
            if lengths_of(at.metadata).get("events"):
                break  # a damaged session, which the whole history reports
            total = count
        elif total is None or count < total - begin(total):
            before = await saver.aget_tuple(at.parent_config)
            batch = _written(before) if before is not None else None
            if before is None or batch is None or lacks_events(len(batch), before, at):
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
    """Return the events that the supersteps after a checkpoint wrote; None if one of them set the whole history."""
    writes = [value for _, channel, value in at.pending_writes or [] if channel == "events"]
    return [event for write in writes for event in write] if all(isinstance(each, list) for each in writes) else None


def lacks_events(found: int, before: CheckpointTuple, at: CheckpointTuple) -> bool:
    """Whether events between a checkpoint and its parent are lost; the whole history then reports a damaged session.

    Args:
        found: The number of events between them that were found.
    """
    unknown = None if "events" in before.checkpoint["channel_versions"] else 0
    first, last = lengths_of(before.metadata).get("events", unknown), lengths_of(at.metadata).get("events")
    return first is not None and last is not None and found < last - first


def _counted(at: CheckpointTuple) -> int | None:
    """Return the number of events at a checkpoint if a plan that began there has counted them.

    Other supersteps write the count of an earlier plan, which the checkpoint itself holds, too.
    """
    held = _count_in(at.checkpoint["channel_values"].get("loop"))
    written = [_count_in(value) for _, channel, value in at.pending_writes or [] if channel == "loop"]
    return next((count for count in written if count is not None and count != held), None)


def _count_in(loop: Any) -> int | None:
    count = loop.get("events_before") if isinstance(loop, dict) else None
    return count if isinstance(count, int) else None


_MAX_CHECKPOINTS = 500
"""Checkpoints to walk back before the whole session is read instead."""


class EventReader:
    """Reads the events of one session since the last read.

    A read loads one checkpoint, and one more for each superstep stored since the last read.

    Args:
        graph: The compiled graph; None to read the stored writes without it.
        session_id: The session, which is the LangGraph thread id.
    """

    def __init__(
        self, graph: CompiledStateGraph[Any, Any, Any, Any] | None, saver: BaseCheckpointSaver[Any], session_id: str
    ) -> None:
        self._graph = graph
        self._saver = saver
        self._thread: RunnableConfig = {"configurable": {"thread_id": session_id}}
        self._seen: str | None = None
        self.count = 0
        """Events read so far."""

    async def read(self) -> Sequence[StoredEvent] | None:
        """Return the events stored since the last read; all events at the first. None if there is no such session.

        If the session was forked, or deleted and begun again, return the events of the current session from index
        `count` on.
        """
        newest = await self._saver.aget_tuple(self._thread)
        if newest is None:
            return None
        checkpoint_id = newest.checkpoint["id"]
        if checkpoint_id == self._seen:
            return ()
        events = await self._since(newest) if self._seen is not None else None
        if events is None:
            events = (await self._events_at(newest))[self.count :]
        self._seen = checkpoint_id
        self.count += len(events)
        return events

    async def read_all(self) -> list[StoredEvent]:
        """Return every event of the session; the position of `read` does not change."""
        return await self._events_at(await self._saver.aget_tuple(self._thread))

    async def read_tail(self, *, last: int | None = None, after: int = -1) -> tuple[int, list[StoredEvent]] | None:
        """Return the newest events, without reading the whole history if possible (see `event_tail`).

        The position of `read` does not change.

        Args:
            last: Maximum number of events; None for all after `after`.
            after: Only events with a higher index.

        Returns:
            The index of the first event, and the events; None if there is no such session.
        """
        newest = await self._saver.aget_tuple(self._thread)
        if newest is None:
            return None
        return await read_tail(self._saver, newest, lambda: self._events_at(newest), last=last, after=after)

    async def _since(self, newest: CheckpointTuple) -> list[StoredEvent] | None:
        """Return the events between the last position and a checkpoint; None if it does not descend from there."""
        batches: list[list[StoredEvent]] = []
        at: CheckpointTuple | None = newest
        for _ in range(_MAX_CHECKPOINTS):
            # The supersteps before a full copy may have been pruned; then its parent is an earlier checkpoint.
            if at is None or at.parent_config is None or "events" in at.checkpoint["channel_values"]:
                return None
            after, at = at, await self._saver.aget_tuple(at.parent_config)
            if at is None:
                return None
            batch = _written(at)
            if batch is None or lacks_events(len(batch), at, after):
                return None
            batches.append(batch)
            if at.checkpoint["id"] == self._seen:
                return [event for batch in reversed(batches) for event in batch]
        return None

    async def _events_at(self, checkpoint: CheckpointTuple | None) -> list[StoredEvent]:
        if checkpoint is None:
            return []
        if self._graph is None:
            return await self._stored_at(checkpoint)
        state = await self._graph.aget_state(checkpoint.config)
        return list(state.values.get("events", []))

    async def _stored_at(self, checkpoint: CheckpointTuple) -> list[StoredEvent]:
        """Return the events at a checkpoint as the graph's channel restores them: the last full copy, then writes."""
        values = checkpoint.checkpoint["channel_values"]
        if "events" in values:
            return list(_unwrapped(values["events"]))
        channels = await self._saver.aget_delta_channel_history(config=checkpoint.config, channels=["events"])
        history = channels["events"]
        events: list[StoredEvent] = list(_unwrapped(history.get("seed", ())))
        for _, _, written in history["writes"]:
            if isinstance(written, list):
                events += written
            else:
                events = list(_unwrapped(written) or ())
        if isinstance(history["writes"], CheckedWrites):
            history["writes"].check(len(events))
        return events


def _unwrapped(stored: Any) -> Any:
    """Return the value of a full copy or of an `Overwrite`, also if only its fields are read; else the value itself."""
    return stored["value"] if isinstance(stored, dict) else getattr(stored, "value", stored)
