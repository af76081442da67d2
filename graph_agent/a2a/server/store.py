"""Task storage: a database for state changes, and memory for tasks that change with every token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from a2a.server.cluster import ConcurrentTaskModificationError
from a2a.server.context import ServerCallContext
from a2a.server.owner_resolver import resolve_user_scope
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore, TaskStore
from a2a.server.tasks.push_notification_config_store import PushNotificationConfigStore
from a2a.types import ListTasksRequest, ListTasksResponse, Message, Part, Role, Task, TaskState
from a2a.utils.errors import InternalError

from graph_agent.a2a.server.sessions import AtWork
from graph_agent.a2a.server.tables import open_tables

LOST = "The server stopped while it ran this task. Send the message again to continue the conversation."

LOST_AFTER_S = 10.0
"""Seconds without an update of a running task after which its session lock is checked."""

_FINAL_WRITE_S = 1.0
"""Seconds to wait for a task without a run: its process may be writing the final state, or starting the run."""

_RETRY_PAUSES_S = (0.2, 1.0, 3.0)
"""Seconds between attempts to write the final state of a task."""

ENDED = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_REJECTED,
    }
)
"""Final task states."""

_RUNNING = frozenset({TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING})


@dataclass(frozen=True)
class Stores:
    """The stores of a server: tasks and push configurations."""

    tasks: TaskStore
    push: PushNotificationConfigStore


@asynccontextmanager
async def open_stores(url: str, *, at_work: AtWork | None = None) -> AsyncIterator[Stores]:
    """Open the stores of a server, and close them on exit.

    The tables are the SDK's: `tasks` and `push_notification_configs`.

    Args:
        url: `memory:`, `sqlite:///FILE`, or `postgresql://…`; may be the database of the sessions.
        at_work: Whether another process runs a task; None if only this process uses the database.

    Raises:
        ConfigError: If the address is of another kind, or the database cannot be reached.
    """
    if url == "memory:":
        yield Stores(InMemoryTaskStore(), InMemoryPushNotificationConfigStore())
        return
    async with open_tables(url) as (tasks, push):
        yield Stores(LiveTaskStore(tasks, at_work), push)


class LiveTaskStore(TaskStore):
    """Keeps running tasks in memory, and writes a task to the database when its state changes.

    The SDK saves the whole task for each token of its answer, which would take one transaction per token. A task that
    the database lists as running but no process runs was lost with its process; it is stored and returned as failed.

    Args:
        store: The persistent store.
        at_work: Whether another process runs a task; None if there is no other process.
    """

    def __init__(self, store: TaskStore, at_work: AtWork | None = None) -> None:
        self._store = store
        self._at_work = at_work
        self._live: dict[tuple[str, str], tuple[Task, int]] = {}
        self._settled = asyncio.Event()
        self._settled.set()

    @property
    def shared(self) -> bool:
        """Whether other processes may run tasks of the same database."""
        return self._at_work is not None

    async def settled(self) -> None:
        """Wait until no task runs and the final states of all tasks are stored."""
        await self._settled.wait()

    async def run_by_other_process(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Return the task if another process runs it, else None.

        Args:
            task_id: The task's id.
            context: The caller's context; its user must own the task.
        """
        if self._at_work is None or (resolve_user_scope(context), task_id) in self._live:
            return None
        task = await self.get(task_id, context)
        # The task may have started in this process during the read.
        here = (resolve_user_scope(context), task_id) in self._live
        return task if task is not None and is_running(task) and not here else None

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Store a task.

        Raises:
            ConcurrentTaskModificationError: If another process has ended the task.
        """
        key = resolve_user_scope(context), task.id
        state = task.status.state
        _, written = self._live.get(key, (None, None))
        if self.shared and written is None and state != TaskState.TASK_STATE_SUBMITTED:
            await self._check_open(task.id, context)
        if state in _RUNNING:
            self._live[key] = task, state
            self._settled.clear()
            if written != state:
                await self._store.save(task, context)
            return
        try:
            await self._save_with_retries(task, context)
        finally:
            self._forget(key)

    async def _save_with_retries(self, task: Task, context: ServerCallContext) -> None:
        # Retried, as only this process has the task's final state or its question.
        for pause_s in _RETRY_PAUSES_S:
            try:
                await self._store.save(task, context)
            except InternalError:
                await asyncio.sleep(pause_s)
            else:
                return
        await self._store.save(task, context)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Return a task; a lost task as failed."""
        if live := self._live.get((resolve_user_scope(context), task_id)):
            copy = Task()
            copy.CopyFrom(live[0])
            return copy
        task = await self._store.get(task_id, context)
        if task is not None and await self._is_abandoned(task, context):
            task = await self._recover(task, context)
        return task

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Delete a task."""
        self._forget((resolve_user_scope(context), task_id))
        await self._store.delete(task_id, context)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """List tasks; lost tasks as failed."""
        owner = resolve_user_scope(context)
        page = await self._store.list(params, context)
        while abandoned := [task for task in page.tasks if await self._is_abandoned(task, context)]:
            await asyncio.gather(*(self._recover(task, context) for task in abandoned))
            # Listed again: filters and order depend on the state, which has changed.
            page = await self._store.list(params, context)
        for task in page.tasks:
            if live := self._live.get((owner, task.id)):
                task.CopyFrom(live[0])
        return page

    async def _check_open(self, task_id: str, context: ServerCallContext) -> None:
        stored = await self._store.get(task_id, context)
        if stored is not None and stored.status.state in ENDED:
            # On this error the SDK drops the run and sends the stored task to subscribers.
            raise ConcurrentTaskModificationError(task_id)

    def _forget(self, key: tuple[str, str]) -> None:
        self._live.pop(key, None)
        if not self._live:
            self._settled.set()

    async def _is_abandoned(self, task: Task, context: ServerCallContext) -> bool:
        """Whether the database lists a task as running but no process runs it."""
        if not is_running(task) or (resolve_user_scope(context), task.id) in self._live:
            return False
        if self._at_work is None:
            return True
        # A task that was just created may have no run yet. The absolute value allows for another machine's clock,
        # which may be ahead of ours.
        age_s = abs(time.time() - task.status.timestamp.ToNanoseconds() / 1e9)
        return age_s > LOST_AFTER_S and not await self._at_work(task, context)

    async def _recover(self, task: Task, context: ServerCallContext) -> Task | None:
        """Give the task's process time to write the final state; mark the task as failed if it is still abandoned."""
        if self._at_work is not None:
            await asyncio.sleep(_FINAL_WRITE_S)
            found = await self._store.get(task.id, context)
            if found is None or not await self._is_abandoned(found, context):
                return found
            task = found
        await self._mark_lost(task, context)
        return task

    async def _mark_lost(self, task: Task, context: ServerCallContext) -> None:
        task.status.state = TaskState.TASK_STATE_FAILED
        task.status.timestamp.GetCurrentTime()
        task.status.message.CopyFrom(
            Message(
                message_id=f"{task.id}-lost",
                role=Role.ROLE_AGENT,
                task_id=task.id,
                context_id=task.context_id,
                parts=[Part(text=LOST)],
            )
        )
        await self._store.save(task, context)


def is_running(task: Task) -> bool:
    """Whether a task is submitted or working."""
    return task.status.state in _RUNNING
