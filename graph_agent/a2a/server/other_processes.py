"""Tasks that another process on the same database works on: watched by what it writes down, stopped through the Store.

The process that has a task is the one that writes it. Who wrote `canceled` over its shoulder would be contradicted by
its next word, and the run would go on: it is asked to stop the run, and its own word for the end is waited for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from a2a.server.context import ServerCallContext
from a2a.server.tasks import TaskStore
from a2a.types import Task
from a2a.utils.errors import InternalError, TaskNotCancelableError
from langgraph.store.base import BaseStore

from graph_agent._internal.polling import look_again
from graph_agent.a2a.server.store import LiveTaskStore
from graph_agent.runs.inbox import StoreInbox, new_note
from graph_agent.runs.registry import POLL_S

logger = logging.getLogger(__name__)

STOPS_WITHIN_S = 20.0
"""Seconds that the other process has to hear of it, stop the run, and write down the end."""
_LOOK_S = 0.2
"""Seconds between two looks at what the other process has written down."""
_STALE_S = 600.0
"""Seconds after which nobody waits for the answer to a note any more, whatever the clocks of two machines say."""
_KIND = "a2a"
_BOX = "cancelled"


class Cancels:
    """What is to be cancelled, told to every process that shares a Store.

    Args:
        store: The agent's Store.
    """

    def __init__(self, store: BaseStore) -> None:
        self._notes = StoreInbox(store, _KIND)

    @asynccontextmanager
    async def told(self, task_id: str) -> AsyncIterator[None]:
        """While within, whoever works on the task is told to stop it."""
        note = new_note("abort", task_id)
        await self._notes.add(_BOX, note)
        try:
            yield
        finally:
            await self._notes.forget(_BOX, [note.key])

    async def listen(self, obey: Callable[[str], None]) -> None:
        """Hear what is to be cancelled, until this is cancelled.

        Args:
            obey: Takes a task's id, also of tasks of other processes, and the same one as often as it is found.
        """

        async def look() -> None:
            notes = await self._notes.read(_BOX)
            for note in notes:
                obey(str(note.content))
            # Who was killed while it waited has left its note.
            old_ns = time.time_ns() - int(_STALE_S * 1e9)
            if stale := [note.key for note in notes if note.sent_ns < old_ns]:
                await self._notes.forget(_BOX, stale)

        await look_again(look, POLL_S, logger, "Looking in the Store which tasks are to be cancelled")


class Elsewhere:
    """The tasks of other processes.

    Args:
        tasks: The tasks of the database; a store of another kind is this process's own.
        store: Reaches other processes; None for no Store.
    """

    def __init__(self, tasks: TaskStore, store: BaseStore | None) -> None:
        self._tasks = tasks if isinstance(tasks, LiveTaskStore) else LiveTaskStore(tasks)
        self.cancels = Cancels(store) if store is not None and self._tasks.shared else None
        """What other processes want cancelled; None where there is no other, or no way to it."""

    async def has(self, task_id: str, context: ServerCallContext) -> bool:
        """Whether another process works on a task of a caller's."""
        return await self._tasks.elsewhere(task_id, context) is not None

    async def cancel(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Cancel a task that another process works on, and wait for what becomes of it.

        Args:
            task_id: The task.
            context: Who asks.

        Returns:
            The task as it ended, or as it waits for a person; None when no other process works on it.

        Raises:
            TaskNotCancelableError: When there is no Store to reach the other process through.
            InternalError: When that process does not stop it in time.
        """
        if await self._tasks.elsewhere(task_id, context) is None:
            return None
        if self.cancels is None:
            raise TaskNotCancelableError(
                message="Another process works on this task, which can only be reached through a Store; build the "
                "agent with store=... in both."
            )
        try:
            async with self.cancels.told(task_id), asyncio.timeout(STOPS_WITHIN_S):
                return await self._stood_still(task_id, context)
        except TimeoutError:
            raise InternalError(
                message=f"The process that works on this task did not stop it within {STOPS_WITHIN_S:g} s. Ask again."
            ) from None

    async def watch(self, task_id: str, context: ServerCallContext) -> AsyncIterator[Task]:
        """A task that another process works on: as it was written down, and as it ends or asks.

        Args:
            task_id: The task.
            context: Who asks.

        Yields:
            Nothing when no other process works on it.
        """
        task = await self._tasks.elsewhere(task_id, context)
        if task is None:
            return
        yield task
        if (ended := await self._stood_still(task_id, context)) is not None:
            yield ended

    async def _stood_still(self, task_id: str, context: ServerCallContext) -> Task | None:
        while True:
            if await self._tasks.elsewhere(task_id, context) is None:
                return await self._tasks.get(task_id, context)
            await asyncio.sleep(_LOOK_S)
