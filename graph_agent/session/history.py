"""Reads session history from checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graph_agent._internal.text import check_session_id
from graph_agent.errors import ConfigError
from graph_agent.session.built_agent import NO_SAVER
from graph_agent.session.event_reader import read_tail
from graph_agent.state.events import Event, StoredEvent, read_events
from graph_agent.types import SessionStatus

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph


class SessionMemory:
    """The history of an agent's sessions.

    Args:
        graph: The compiled graph, with its checkpointer.

    Raises:
        ConfigError: When the graph has no checkpointer.
    """

    def __init__(self, graph: CompiledStateGraph[Any, Any, Any, Any]) -> None:
        if not graph.checkpointer or graph.checkpointer is True:
            raise ConfigError(NO_SAVER)
        self._graph = graph
        self._saver = graph.checkpointer

    async def get_session_events(
        self, session_id: str, checkpoint_id: str | None = None, *, last: int | None = None, after: int = -1
    ) -> list[Event]:
        """Return the events of a session, oldest first.

        With `last` or `after`, only the checkpoints that stored those events are read, as far as they remain after
        `prune`; otherwise the whole history is.

        Args:
            session_id: The session, which is the LangGraph thread id.
            checkpoint_id: An earlier checkpoint, for the events up to it; None for the newest.
            last: Maximum number of events, the newest ones; None for all.
            after: Only events whose `seq` is higher.

        Returns:
            The events; empty for a session that does not exist.
        """
        config: RunnableConfig = {"configurable": {"thread_id": check_session_id(session_id)}}
        if checkpoint_id is not None:
            config["configurable"]["checkpoint_id"] = checkpoint_id

        async def whole() -> list[StoredEvent]:
            state = await self._graph.aget_state(config)
            return list(state.values.get("events", []))

        if last is None and after < 0:
            return read_events(await whole(), session_id)
        newest = await self._saver.aget_tuple(config)
        if newest is None:
            return []
        pending = checkpoint_id is None
        first, stored = await read_tail(self._saver, newest, whole, last=last, after=after, pending=pending)
        return read_events(stored, session_id, first)

    async def get_session_status(self, session_id: str) -> SessionStatus:
        """Return the status of a session; `CREATED` before its first input, and for one that does not exist.

        Only the newest checkpoint is read.
        """
        newest = await self._saver.aget_tuple({"configurable": {"thread_id": check_session_id(session_id)}})
        values = newest.checkpoint["channel_values"] if newest is not None else {}
        return SessionStatus(values.get("status", SessionStatus.CREATED))

    async def list_sessions(self) -> list[str]:
        """Return the ids of all sessions, newest first."""
        return await list_threads(self._saver)


async def list_threads(
    saver: BaseCheckpointSaver[Any], *, group: str | None = None, after: str | None = None, limit: int | None = None
) -> list[str]:
    """Return the ids of a saver's threads, newest first.

    The savers of `open_saver` read a page by an index; for other savers, one checkpoint of each thread is read.

    Args:
        group: Prefix of the ids, up to their only slash; empty for ids without a slash. None for all threads.
        after: Only threads after this one; None to begin with the first.
        limit: Maximum number of threads; None for all.

    Raises:
        KeyError: If there is no thread `after`.
    """
    page = getattr(saver, "list_threads", None)
    if page is not None:
        return list(await page(group=group, after=after, limit=limit))
    found = await _all_threads(saver)
    if group is not None:
        found = [thread for thread in found if thread.startswith(group) and "/" not in thread[len(group) :]]
    if after is not None:
        if after not in found:
            raise KeyError(after)
        found = found[found.index(after) + 1 :]
    return found[:limit]


async def _all_threads(saver: BaseCheckpointSaver[Any]) -> list[str]:
    # A thread begins with an input at superstep -1 or an update at superstep 0: this finds one row per session.
    first_ids: dict[str, str] = {}
    for first in ({"step": -1}, {"step": 0, "source": "update"}):
        async for found in saver.alist(None, filter=first):
            at = found.config["configurable"]
            if found.parent_config is None and not at.get("checkpoint_ns"):
                first_ids[at["thread_id"]] = at["checkpoint_id"]
    # Checkpoint ids grow with time, across threads too.
    return sorted(first_ids, key=lambda thread_id: first_ids[thread_id], reverse=True)
