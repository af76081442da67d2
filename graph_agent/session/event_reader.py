"""Incremental reading of a session's events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graph_agent.events.types import StoredEvent
from graph_agent.session.event_tail import read_tail

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
    from langgraph.graph.state import CompiledStateGraph

_MAX_CHECKPOINTS = 500
"""Checkpoints to walk back before the whole session is read instead."""


class EventReader:
    """Reads the events of one session since the last read.

    A read loads one checkpoint, and one more for each superstep stored since the last read.

    Args:
        graph: The compiled graph; None to read the stored writes without it.
        saver: Its checkpointer.
        session_id: The session, which is the LangGraph thread id.
    """

    def __init__(
        self,
        graph: CompiledStateGraph[Any, Any, Any, Any] | None,
        saver: BaseCheckpointSaver[Any],
        session_id: str,
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
        batches: list[list[Any]] = []
        at: CheckpointTuple | None = newest
        for _ in range(_MAX_CHECKPOINTS):
            # The steps before a full copy may have been pruned; then its parent is an earlier checkpoint.
            if at is None or at.parent_config is None or "events" in at.checkpoint["channel_values"]:
                return None
            at = await self._saver.aget_tuple(at.parent_config)
            if at is None:
                return None
            writes = [value for _, channel, value in at.pending_writes or [] if channel == "events"]
            if not all(isinstance(write, list) for write in writes):
                return None
            batches.append([event for write in writes for event in write])
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
        return events


def _unwrapped(stored: Any) -> Any:
    """Return the value of a full copy or of an `Overwrite`, also if only its fields are read; else the value itself."""
    return stored["value"] if isinstance(stored, dict) else getattr(stored, "value", stored)
