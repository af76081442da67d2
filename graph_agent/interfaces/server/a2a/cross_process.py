"""Watches tasks of other processes through the database, and cancels them through the Store.

Only the process that runs a task writes it. Its next update would overwrite an external `canceled`, and the run would
continue. A cancel request is therefore sent to that process, and the final state that it writes is awaited.
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

from graph_agent.base._internal.polling import poll_forever
from graph_agent.base.inbox import StoreInbox, new_note
from graph_agent.interfaces.server.a2a.store import LiveTaskStore

logger = logging.getLogger("graph_agent.server.a2a.cross_process")

STOPS_WITHIN_S = 20.0
"""Maximum seconds in which another process must receive a request to cancel, stop the run, and write the final
state.
"""
_POLL_REQUESTS_S = 0.25
"""Seconds between two reads of the requests to cancel."""
_POLL_TASK_S = 0.2
"""Seconds between two reads of a task that another process runs."""
_STALE_S = 600.0
"""Age in seconds at which a request is deleted. It is long enough for different clocks of machines."""
_KIND = "a2a"
_BOX = "cancelled"


class CancelRequests:
    """Requests to cancel tasks, in the LangGraph Store, where every process that shares it reads them."""

    def __init__(self, store: BaseStore) -> None:
        self._notes = StoreInbox(store, _KIND)

    @asynccontextmanager
    async def request(self, task_id: str) -> AsyncIterator[None]:
        """Keep a request to cancel a task in the Store within the context, and remove it on exit."""
        note = new_note("abort", task_id)
        await self._notes.add(_BOX, note)
        try:
            yield
        finally:
            await self._notes.forget(_BOX, [note.key])

    async def listen(self, cancel: Callable[[str], None]) -> None:
        """Poll the Store for requests every 0.25 s until this coroutine is cancelled, and call `cancel` with each task
        id.

        Each request is reported at every poll, also for tasks that run in other processes. Requests older than 10
        minutes are deleted. After a failure of the Store, the next poll follows; only the first of consecutive failures
        is logged.
        """

        async def poll() -> None:
            """Read the requests once, call `cancel` for each, and delete those older than 10 minutes."""
            notes = await self._notes.read(_BOX)
            for note in notes:
                cancel(str(note.content))
            # A process that was killed while it waited leaves its request behind.
            old_ns = time.time_ns() - int(_STALE_S * 1e9)
            if stale := [note.key for note in notes if note.sent_ns < old_ns]:
                await self._notes.forget(_BOX, stale)

        await poll_forever(poll, _POLL_REQUESTS_S, logger, "Reading cancel requests from the Store")


class OtherProcesses:
    """Watches and cancels the tasks that other processes run.

    Args:
        tasks: The task store. Only a `LiveTaskStore` over a database is shared with other processes.
        store: The LangGraph Store through which other processes are reached; None if there is none.
    """

    def __init__(self, tasks: TaskStore, store: BaseStore | None) -> None:
        self._tasks = tasks if isinstance(tasks, LiveTaskStore) else LiveTaskStore(tasks)
        self.cancel_requests = CancelRequests(store) if store is not None and self._tasks.shared else None
        """The requests to cancel between processes; None if there are no other processes, or no Store."""

    async def has(self, task_id: str, context: ServerCallContext) -> bool:
        """Return whether a task of the caller runs in another process."""
        return await self._tasks.run_by_other_process(task_id, context) is not None

    async def cancel(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Cancel a task that another process runs, and return the task once its run has stopped; None if no other
        process runs it, or it is deleted meanwhile.

        Raises:
            TaskNotCancelableError: There is no Store to reach that process.
            InternalError: The run did not stop within 20 seconds.
        """
        if await self._tasks.run_by_other_process(task_id, context) is None:
            return None
        if self.cancel_requests is None:
            raise TaskNotCancelableError(
                message="Another process runs this task and can only be reached through a Store; build the agent with "
                "store=... in both."
            )
        try:
            # The request stays in the Store while this waits: the other process may start to listen later.
            async with self.cancel_requests.request(task_id), asyncio.timeout(STOPS_WITHIN_S):
                return await self._wait_until_stopped(task_id, context)
        except TimeoutError:
            raise InternalError(
                message=f"The process that runs this task did not stop it within {STOPS_WITHIN_S:g} s. Try again."
            ) from None

    async def watch(self, task_id: str, context: ServerCallContext) -> AsyncIterator[Task]:
        """Yield a task that another process runs, as it is stored now and again after its run has stopped, unless it is
        deleted.

        Yields nothing for a task that no other process runs.
        """
        task = await self._tasks.run_by_other_process(task_id, context)
        if task is None:
            return
        yield task
        if (stopped := await self._wait_until_stopped(task_id, context)) is not None:
            yield stopped

    async def _wait_until_stopped(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Read the task every 0.2 s until no other process runs it, and return it as it is stored then; None if it was
        deleted.
        """
        while True:
            if await self._tasks.run_by_other_process(task_id, context) is None:
                return await self._tasks.get(task_id, context)
            await asyncio.sleep(_POLL_TASK_S)
