"""Stores tasks: each token in memory, and changes of state in a database.

A *lease* is the lock on a session that the process which runs a task holds. A *lost* task is one that the database
lists as running although no process runs it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass

from a2a import types
from a2a.server.cluster import ConcurrentTaskModificationError
from a2a.server.context import ServerCallContext
from a2a.server.owner_resolver import resolve_user_scope
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore, TaskStore
from a2a.server.tasks.push_notification_config_store import PushNotificationConfigStore
from a2a.utils.errors import InternalError

from graph_agent.interfaces.server.a2a.conversations import TaskLease
from graph_agent.interfaces.server.a2a.task_tables import open_task_tables
from graph_agent.interfaces.server.a2a.updates import is_progress_message

LOST = "The server stopped while it ran this task. Send the message again to continue the conversation."
"""Message of a task that is marked as failed because no process runs it any more."""

LOST_AFTER_S = 10.0
"""Seconds without an update of a running task after which it is checked whether a process still runs it."""

_FINAL_WRITE_S = 1.0
"""Seconds to wait before a task without a run counts as lost.

Its process may be writing the final state, or starting the run.
"""

_RETRY_PAUSES_S = (0.2, 1.0, 3.0)
"""Seconds between the attempts to write the final state of a task."""

ENDED_STATES = frozenset(
    {
        types.TaskState.TASK_STATE_COMPLETED,
        types.TaskState.TASK_STATE_FAILED,
        types.TaskState.TASK_STATE_CANCELED,
        types.TaskState.TASK_STATE_REJECTED,
    }
)
"""States of a task that are final."""

_RUNNING = frozenset({types.TaskState.TASK_STATE_SUBMITTED, types.TaskState.TASK_STATE_WORKING})


@dataclass(frozen=True)
class Stores:
    """The storage of a server: its tasks and its push configurations."""

    tasks: TaskStore
    push: PushNotificationConfigStore


@asynccontextmanager
async def open_stores(url: str, *, task_lease: TaskLease | None = None) -> AsyncIterator[Stores]:
    """Open the stores of a server, in the SDK's tables `tasks` and `push_notification_configs`; yield them, and close
    them on exit.

    Args:
        url: URL of the database, which may be that of the sessions; `memory:` for stores in memory.
        task_lease: Returns whether any process runs a task; None if only this process uses the database. It is not used
            with `memory:`.

    Raises:
        ConfigError: The URL is of an unknown kind, or the database cannot be reached.
    """
    if url == "memory:":
        yield Stores(InMemoryTaskStore(), InMemoryPushNotificationConfigStore())
        return
    async with open_task_tables(url) as (tasks, push):
        yield Stores(LiveTaskStore(tasks, task_lease), push)


class LiveTaskStore(TaskStore):
    """Keeps running tasks in memory, and writes a task to the database only when its state changes.

    The SDK saves the whole task for each token of the answer, which would take one transaction per token. A lost task
    is marked as failed when it is read.

    Args:
        store: The SDK's store of the database.
        task_lease: Returns whether any process runs a task; None if only this process uses the database.
    """

    def __init__(self, store: TaskStore, task_lease: TaskLease | None = None) -> None:
        self._store = store
        self._has_lease = task_lease
        self._live: dict[tuple[str, str], tuple[types.Task, int]] = {}
        """(User, task id) → running task of this process, and the state that the database has."""
        self._settled = asyncio.Event()
        self._settled.set()

    @property
    def shared(self) -> bool:
        """Whether other processes may run tasks of the same database."""
        return self._has_lease is not None

    async def settled(self) -> None:
        """Wait until this process runs no task, and the final states of all its tasks are stored."""
        await self._settled.wait()

    def abandon(self) -> None:
        """Forget running tasks whose runs were cancelled, so that `settled` no longer waits.

        They have no final state, and are read as failed later.
        """
        self._live.clear()
        self._settled.set()

    async def run_by_other_process(self, task_id: str, context: ServerCallContext) -> types.Task | None:
        """Return a task of the caller if another process runs it; otherwise None, and always None without leases.

        A task that the database lists as running although no process runs it is marked as failed.
        """
        if self._has_lease is None or (resolve_user_scope(context), task_id) in self._live:
            return None
        task = await self.get(task_id, context)
        # The task may have started in this process during the read.
        here = (resolve_user_scope(context), task_id) in self._live
        return task if task is not None and is_running_task(task) and not here else None

    async def save(self, task: types.Task, context: ServerCallContext) -> None:
        """Store a task whose state may have changed.

        While the task is submitted or working, it is kept in memory, and written to the database only if its state has
        changed. In any other state, which is final or a question, it is written with retries and removed from memory.
        Raises `ConcurrentTaskModificationError` if another process has ended the task, and `InternalError` if the
        database fails.
        """
        key = resolve_user_scope(context), task.id
        state = task.status.state
        _, written = self._live.get(key, (None, None))
        if self.shared and written is None and state != types.TaskState.TASK_STATE_SUBMITTED:
            await self._check_open(task.id, context)
        if state in _RUNNING:
            # Every token changes the task, but only a new state is written.
            self._live[key] = task, state
            self._settled.clear()
            if written != state:
                await self._store.save(task, context)
            return
        try:
            await self._save_with_retries(task, context)
        finally:
            self._forget(key)

    async def _save_with_retries(self, task: types.Task, context: ServerCallContext) -> None:
        """Write a task to the database. If that fails, try again after 0.2, 1 and 3 seconds, and then raise
        `InternalError`.
        """
        # Retried, as only this process has the task's final state or its question.
        for pause_s in _RETRY_PAUSES_S:
            try:
                await self._store.save(task, context)
            except InternalError:
                await asyncio.sleep(pause_s)
            else:
                return
        await self._store.save(task, context)

    async def get(self, task_id: str, context: ServerCallContext) -> types.Task | None:
        """Return a copy of a running task of this process, or the stored task; None if there is none.

        A task that the database lists as running although no process runs it is marked as failed first.
        """
        if live := self._live.get((resolve_user_scope(context), task_id)):
            return deepcopy(live[0])
        task = await self._store.get(task_id, context)
        if task is not None and await self._is_abandoned(task, context):
            task = await self._recover(task, context)
        return task

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Delete a task from memory and the database."""
        self._forget((resolve_user_scope(context), task_id))
        await self._store.delete(task_id, context)

    async def list(self, params: types.ListTasksRequest, context: ServerCallContext) -> types.ListTasksResponse:
        """Return a page of the caller's tasks, with the newest state of those that this process runs.

        Tasks that the database lists as running although no process runs them are marked as failed first, and the page
        is read again.
        """
        owner = resolve_user_scope(context)
        page = await self._store.list(params, context)
        while abandoned := [task for task in page.tasks if await self._is_abandoned(task, context)]:
            await asyncio.gather(*(self._recover(task, context) for task in abandoned))
            # Listed again: filters and order depend on the state, which has changed.
            page = await self._store.list(params, context)
        for task in page.tasks:
            if live := self._live.get((owner, task.id)):
                # The database lags behind a running task.
                task.CopyFrom(live[0])
        return page

    async def _check_open(self, task_id: str, context: ServerCallContext) -> None:
        """Raise `ConcurrentTaskModificationError` if the stored task has ended."""
        stored = await self._store.get(task_id, context)
        if stored is not None and stored.status.state in ENDED_STATES:
            # On this error the SDK drops the run and sends the stored task to subscribers.
            raise ConcurrentTaskModificationError(task_id)

    def _forget(self, key: tuple[str, str]) -> None:
        """Remove a task from memory, by its user and id. After the last one, `settled` no longer waits."""
        self._live.pop(key, None)
        if not self._live:
            self._settled.set()

    async def _is_abandoned(self, task: types.Task, context: ServerCallContext) -> bool:
        """Return whether the database lists a task as running although no process runs it.

        A task that runs in this process is not abandoned. Without leases (`_has_lease`), any other running task is
        abandoned. With leases, a task is abandoned if it has none and its last update is more than 10 seconds old; a
        newer run may be starting.
        """
        if not is_running_task(task) or (resolve_user_scope(context), task.id) in self._live:
            return False
        if self._has_lease is None:
            return True
        # A task that was just created may have no run yet. The absolute value allows for another machine's clock,
        # which may be ahead of ours.
        age_s = abs(time.time() - task.status.timestamp.ToNanoseconds() / 1e9)
        return age_s > LOST_AFTER_S and not await self._has_lease(task, context)

    async def _recover(self, task: types.Task, context: ServerCallContext) -> types.Task | None:
        """Mark a task that no process runs as failed, unless its process writes another state, or a process runs it
        again, within a second.

        Without leases, it is marked at once. Returns the task as it is stored then; None if it was deleted.
        """
        if self._has_lease is not None:
            await asyncio.sleep(_FINAL_WRITE_S)
            found = await self._store.get(task.id, context)
            if found is None or not await self._is_abandoned(found, context):
                return found
            task = found
        await self._mark_lost(task, context)
        return task

    async def _mark_lost(self, task: types.Task, context: ServerCallContext) -> None:
        """Change a task to failed, with the message `LOST`, and write it to the database."""
        task.status.state = types.TaskState.TASK_STATE_FAILED
        task.status.timestamp.GetCurrentTime()
        task.status.message.CopyFrom(
            types.Message(
                message_id=f"{task.id}-lost",
                role=types.Role.ROLE_AGENT,
                task_id=task.id,
                context_id=task.context_id,
                parts=[types.Part(text=LOST)],
            )
        )
        await self._store.save(task, context)


def is_running_task(task: types.Task) -> bool:
    """Return whether the state of a task is submitted or working."""
    return task.status.state in _RUNNING


class ConversationStore(TaskStore):
    """Stores tasks without progress messages in their history.

    The SDK appends the message of each status update to the history when the next update arrives. The protocol allows
    an agent to omit transient messages. So `historyLength` counts only the client's messages and the agent's questions;
    the newest progress stays in the task's status.

    Args:
        store: Stores the tasks.
    """

    def __init__(self, store: TaskStore) -> None:
        self._store = store

    async def save(self, task: types.Task, context: ServerCallContext) -> None:
        """Store a task without progress messages in its history.

        They are also removed from `task` itself, which the SDK returns to clients.
        """
        # The SDK also returns the history to clients, which count its messages.
        history = [message for message in task.history if not is_progress_message(message)]
        if len(history) < len(task.history):
            del task.history[:]
            task.history.extend(history)
        await self._store.save(task, context)

    async def get(self, task_id: str, context: ServerCallContext) -> types.Task | None:
        """Return a task; None if there is none."""
        return await self._store.get(task_id, context)

    async def list(self, params: types.ListTasksRequest, context: ServerCallContext) -> types.ListTasksResponse:
        """Return a page of the caller's tasks."""
        return await self._store.list(params, context)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Delete a task."""
        await self._store.delete(task_id, context)
