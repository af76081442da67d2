"""Counts what followed in the inputs of stored sessions, once, when an agent begins to use its table of calls.

Sessions are read while plans are asked for, so that they delay no input by more than the read of one session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Protocol

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore

from graph_agent.base._internal.failure_log import get_logger, log_failure
from graph_agent.base._internal.text import text_of
from graph_agent.base.history.events import StoredEvent
from graph_agent.core.execution.overlap.call_table import CallTable
from graph_agent.core.execution.overlap.learned_calls import LearnedCalls

MOST_SESSIONS = 100
"""Maximum sessions that are read, the newest ones."""
MOST_EVENTS = 300
"""Maximum events that are read of one session, the newest ones."""

logger = get_logger("graph_agent.overlap")


class PastSessions(Protocol):
    """Reads sessions from a checkpointer."""

    async def newest(self, saver: BaseCheckpointSaver[Any], most: int) -> list[str]:
        """Return the ids of the newest sessions, newest first."""
        ...

    async def events(self, saver: BaseCheckpointSaver[Any], session_id: str, most: int) -> Sequence[StoredEvent]:
        """Return the newest events of a session, oldest first."""
        ...


class PastInputs:
    """The inputs of stored sessions that began before this object was made, of an agent with the same tools.

    Args:
        sessions: Reads the sessions.
    """

    def __init__(self, sessions: PastSessions) -> None:
        self._sessions = sessions
        self._before = datetime.now(UTC).isoformat(timespec="microseconds")
        self._left: list[str] | None = None
        """Ids of sessions that have not been read, newest first; None before the first read."""
        self._counts = CallTable()
        self._is_read = False
        """Whether a run reads them now."""
        self._is_paused = False
        """Whether it shall stop before the next session."""
        self._is_counted = False
        """Whether all have been counted, or cannot be read."""

    @asynccontextmanager
    async def counted_during(
        self,
        table: CallTable,
        saver: BaseCheckpointSaver[Any] | None,
        where: tuple[BaseStore | None, str],
        tools: Collection[str],
    ) -> AsyncIterator[None]:
        """Count the inputs while the `with` block runs, and finish the session that is being read at its end; a later
        block goes on with the next one. A failure ends the counting for good and is logged.

        Does nothing if all are counted, or another run counts them.

        Args:
            table: The table of the agent.
            saver: The checkpointer of the sessions; None without one.
            where: The Store that keeps the table, None without one, and the name of the agent in it.
            tools: Names of the agent's tools; sessions of agents with others are not counted.
        """
        if self._is_counted or self._is_read:
            yield
            return
        self._is_read, self._is_paused = True, False
        counting = asyncio.ensure_future(self._count(table, saver, where, {*tools}))
        try:
            yield
        finally:
            self._is_paused = True
            # Not cancelled: what it has read is of use for later plans.
            await asyncio.wait([counting])

    async def _count(
        self,
        table: CallTable,
        saver: BaseCheckpointSaver[Any] | None,
        where: tuple[BaseStore | None, str],
        tools: set[str],
    ) -> None:
        """Read the sessions, unless a process has counted them in the Store, and move the counts to the table.

        When this process has read all of them, this is recorded in the Store. Exceptions are logged, and end the
        counting for good; so does the lack of a checkpointer.

        Args:
            where: The Store that keeps the table, None without one, and the name of the agent in it.
            tools: Names of the agent's tools; sessions of agents with others are not counted.
        """
        try:
            if saver is not None and not await table.has_past(*where):
                await self._read(saver, tools)
            await table.take(self._counts, *where)
            if not self._left:
                # Without a checkpointer nothing was read, and another process may still read them.
                if self._left is not None:
                    await table.end_past(*where)
                self._is_counted = True
        except Exception as error:  # noqa: BLE001 - a checkpointer may raise anything, and the agent works without it
            log_failure(logger, "Learning from stored sessions", error)
            self._is_counted = True
        finally:
            self._is_read = False

    async def _read(self, saver: BaseCheckpointSaver[Any], tools: set[str]) -> None:
        """Read sessions, the oldest of the newest ones first, and count their inputs that began before this object;
        stop when paused.

        Args:
            saver: The checkpointer of the sessions.
            tools: Names of the agent's tools; sessions of agents with others are skipped.
        """
        if self._left is None:
            self._left = await self._sessions.newest(saver, MOST_SESSIONS)
        while self._left:
            # The oldest first, as they were counted then.
            events = await self._sessions.events(saver, self._left[-1], MOST_EVENTS)
            self._left.pop()
            for each in _inputs_of(events) if _has_tools(events, tools) else ():
                if each[0]["ts"] < self._before:
                    await self._count_input(each)
            if self._is_paused:
                break

    async def _count_input(self, events: Sequence[StoredEvent]) -> None:
        """Count the calls of one past input in the order of its waves, with the rules by which a running input is
        counted.
        """
        learned = LearnedCalls(self._counts, None, "")
        plans = [at for at, entry in enumerate(events) if entry["type"] == "plan"]
        first = plans[0] if plans else len(events)
        texts = [text_of(entry["content"]) for entry in events[:first] if entry["type"] == "user_message"]
        wave: Sequence[StoredEvent] = ()
        for step, (begin, end) in enumerate(zip(plans, [*plans[1:], len(events)], strict=True)):
            await learned.propose(step, texts, lambda wave=wave: wave)  # type: ignore[misc]  # mypy infers no lambda
            wave = events[begin:end]
            if not events[begin]["calls"]:
                await learned.end(step)


def _has_tools(events: Sequence[StoredEvent], tools: set[str]) -> bool:
    """Whether a session's agent had exactly these tools at its newest plan.

    Where plans do not record the tools, whether all tools that were called are among these, and at least one was
    called.
    """
    offered = [entry["versions"]["tools"] for entry in events if entry["type"] == "plan" and "versions" in entry]
    used = {entry["name"] for entry in events if entry["type"] == "tool_call"}
    return {*offered[-1]} == tools if offered else bool(used) and used <= tools


def _inputs_of(events: Sequence[StoredEvent]) -> Iterator[list[StoredEvent]]:
    """Yield the events of each input that has ended, oldest first; events before the first user message are skipped."""
    found: list[StoredEvent] = []
    for entry in events:
        if not found and entry["type"] != "user_message":
            continue
        found.append(entry)
        if entry["type"] == "status" and entry["to"] != "RUNNING":
            yield found
            found = []
