"""Reads session history from checkpoints, and summarizes sessions: title, age, turns and status."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from graph_agent._internal.text import check_session_id, text_of
from graph_agent.errors import ConfigError, DamagedSessionError, NewerFormatError
from graph_agent.session.built_agent import NO_SAVER
from graph_agent.session.event_reader import read_tail
from graph_agent.state.events import Event, StoredEvent, read_events
from graph_agent.types import SessionStatus

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
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


TITLE_LENGTH = 60
"""Maximum characters of a title."""
_INTERRUPT, _RESUME = "__interrupt__", "__resume__"
"""Channels of the pending writes of an interrupt and of its answer."""

Activity = Literal["running", "waiting", "interrupted", "idle", "newer", "damaged"]


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """One session of a database."""

    id: str
    """The session's id."""
    title: str
    """The beginning of its first user message, in one line; empty if the message is not stored."""
    updated_at: str
    """Time of its newest checkpoint: ISO 8601, UTC."""
    turns: int
    """Phase-1 model calls so far, as `max_turns` counts them."""
    status: SessionStatus
    """Its status; `RUNNING` while it waits for a person."""
    activity: Activity
    """`running`: a run is under way; `waiting`: for a person's answer; `interrupted`: its process ended in the middle
    of a run; `idle`: its newest input has ended; `newer`: a newer version of this package stored it, or `damaged`: it
    cannot be read, and the other fields have no values."""


async def summarize_sessions(
    saver: BaseCheckpointSaver[Any],
    is_running: Callable[[str], Awaitable[bool]],
    *,
    after: str | None = None,
    limit: int | None = None,
) -> list[SessionSummary]:
    """Return the summaries of the sessions, newest first.

    Args:
        is_running: Whether a run of a session is under way in any process; called for unfinished sessions only.
        after: Only sessions after this one; None to begin with the newest.
        limit: Maximum number of sessions; None for all.

    Raises:
        KeyError: If there is no session `after`.
    """
    summaries = []
    for session_id in await list_threads(saver, after=after, limit=limit):
        try:
            newest = await saver.aget_tuple({"configurable": {"thread_id": session_id, "checkpoint_ns": ""}})
            if newest is not None:
                summaries.append(await summarize_session(saver, session_id, newest, is_running))
        except (NewerFormatError, DamagedSessionError) as error:
            unread: Activity = "newer" if isinstance(error, NewerFormatError) else "damaged"
            summaries.append(SessionSummary(session_id, "", "", 0, SessionStatus.CREATED, unread))
    return summaries


async def summarize_session(
    saver: BaseCheckpointSaver[Any],
    session_id: str,
    newest: CheckpointTuple,
    is_running: Callable[[str], Awaitable[bool]],
) -> SessionSummary:
    """Return the summary of one session."""
    values = newest.checkpoint["channel_values"]
    loop = values.get("loop")
    # A thread of another graph may have a field of the same name.
    status = next((known for known in SessionStatus if known == values.get("status")), SessionStatus.CREATED)
    activity: Activity = "idle"
    if _is_open(newest, status):
        waits = is_waiting(newest)
        activity = "running" if await is_running(session_id) else "waiting" if waits else "interrupted"
    return SessionSummary(
        id=session_id,
        title=title_of(await _first_checkpoint(saver, session_id)),
        updated_at=newest.checkpoint["ts"],
        turns=loop.get("turn", 0) if isinstance(loop, dict) else 0,
        status=status,
        activity=activity,
    )


def _is_open(newest: CheckpointTuple, status: SessionStatus) -> bool:
    """Whether the newest input has not ended; it changes the status only when its first plan is stored."""
    return status in (SessionStatus.RUNNING, SessionStatus.CREATED) or newest.metadata.get("source") == "input"


def is_waiting(newest: CheckpointTuple) -> bool:
    """Whether a task of a thread's newest checkpoint waits for a person's answer."""
    written: dict[str, set[str]] = {}
    for task_id, channel, _ in newest.pending_writes or []:
        written.setdefault(task_id, set()).add(channel)
    return any(_INTERRUPT in channels and channels <= {_INTERRUPT, _RESUME} for channels in written.values())


def title_of(first: CheckpointTuple | None) -> str:
    """Return the beginning of the first user message in a thread's first checkpoint; empty if there is none.

    Args:
        first: The thread's oldest checkpoint, which holds its first input.
    """
    given = first.checkpoint["channel_values"].get("__start__") if first is not None else None
    messages = given.get("messages") if isinstance(given, dict) else None
    listed = messages if isinstance(messages, list) else [messages]
    return shorten(next((text for message in listed if (text := _user_text(message))), ""))


def shorten(text: str, length: int = TITLE_LENGTH) -> str:
    """Return a text as one line of at most `length` characters, with `…` if it is cut."""
    line = " ".join(text[: 20 * length].split())
    return line if len(line) <= length else f"{line[: length - 1].rstrip()}…"


def _user_text(message: Any) -> str:
    """Return the text of a user's message in any form that LangGraph accepts; empty for other messages."""
    if isinstance(message, str):
        return message
    if isinstance(message, Sequence):
        role, content = message if len(message) == 2 else ("", "")
    elif isinstance(message, dict):
        role, content = message.get("role") or message.get("type"), message.get("content")
    else:
        role, content = getattr(message, "type", ""), getattr(message, "content", "")
    return text_of(content) if role in ("human", "user") and isinstance(content, str | list) else ""


async def _first_checkpoint(saver: BaseCheckpointSaver[Any], session_id: str) -> CheckpointTuple | None:
    read = getattr(saver, "first_checkpoint", None)
    if read is not None:
        found: CheckpointTuple | None = await read(session_id)
        return found
    thread: Any = {"configurable": {"thread_id": session_id, "checkpoint_ns": ""}}
    async for first in saver.alist(thread, filter={"step": -1}, limit=1):
        return first
    return None
