"""Where tasks are kept: a database that survives a restart, and memory for what changes with every token."""

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

LOST = "The server stopped while it worked on this task. Send the message again to go on with the conversation."

LOST_AFTER_S = 10.0
"""Seconds without news of a task, after which its session is asked whether somebody still works on it."""

_ENDS_WITHIN_S = 1.0
"""Seconds that a task whose run is over has until its end is written down, or until its turn has come."""

_AGAIN_AFTER_S = (0.2, 1.0, 3.0)
"""Seconds between the attempts to write down how a task has ended."""

ENDED = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_REJECTED,
    }
)
"""What a task never comes back from."""

_RUNNING = frozenset({TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING})


@dataclass(frozen=True)
class Stores:
    """Where a server keeps its tasks, and whom it notifies of them."""

    tasks: TaskStore
    push: PushNotificationConfigStore


@asynccontextmanager
async def open_stores(url: str, *, at_work: AtWork | None = None) -> AsyncIterator[Stores]:
    """Open the stores of a server, and close them on leaving.

    The tables are the SDK's: `tasks` and `push_notification_configs`.

    Args:
        url: `memory:`, `sqlite:///FILE`, or `postgresql://…`; the database of the sessions will do.
        at_work: How to find out whether another process works on a task; None where this is the one process that has
            the database's tasks.

    Raises:
        ConfigError: On an address of another kind, or a database that cannot be reached.
    """
    if url == "memory:":
        yield Stores(InMemoryTaskStore(), InMemoryPushNotificationConfigStore())
        return
    async with open_tables(url) as (tasks, push):
        yield Stores(LiveTaskStore(tasks, at_work), push)


class LiveTaskStore(TaskStore):
    """Keeps the tasks at work in memory, and writes a task down when its state changes.

    The SDK saves the whole task at each token of its answer, which would cost a long answer its length in transactions.
    A task that is at work according to the database, and that no one works on, was lost with the process that did: it
    is told, and kept, as failed.

    Args:
        kept: The store that survives.
        at_work: How to find out whether another process works on a task; None where there is no other.
    """

    def __init__(self, kept: TaskStore, at_work: AtWork | None = None) -> None:
        self._kept = kept
        self._at_work = at_work
        self._live: dict[tuple[str, str], tuple[Task, int]] = {}
        self._settled = asyncio.Event()
        self._settled.set()

    @property
    def shared(self) -> bool:
        """Whether other processes may work on tasks of the same database."""
        return self._at_work is not None

    async def settled(self) -> None:
        """Wait until every task that is not at work any more is written down."""
        await self._settled.wait()

    async def elsewhere(self, task_id: str, context: ServerCallContext) -> Task | None:
        """The task, if another process works on it.

        Args:
            task_id: Its id.
            context: Whose task it must be.
        """
        if self._at_work is None or (resolve_user_scope(context), task_id) in self._live:
            return None
        task = await self.get(task_id, context)
        # It may have begun here meanwhile.
        here = (resolve_user_scope(context), task_id) in self._live
        return task if task is not None and is_running(task) and not here else None

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """As the SDK's.

        Raises:
            ConcurrentTaskModificationError: When a task is taken up again that another process has ended.
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
                await self._kept.save(task, context)
            return
        try:
            await self._write_end(task, context)
        finally:
            self._forget(key)

    async def _write_end(self, task: Task, context: ServerCallContext) -> None:
        # A database that fails may be well in a moment, and nobody else knows how the task has ended, or what it asks.
        for pause_s in _AGAIN_AFTER_S:
            try:
                await self._kept.save(task, context)
            except InternalError:
                await asyncio.sleep(pause_s)
            else:
                return
        await self._kept.save(task, context)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """As the SDK's."""
        if live := self._live.get((resolve_user_scope(context), task_id)):
            copy = Task()
            copy.CopyFrom(live[0])
            return copy
        task = await self._kept.get(task_id, context)
        if task is not None and await self._is_quiet(task, context):
            task = await self._after_all(task, context)
        return task

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """As the SDK's."""
        self._forget((resolve_user_scope(context), task_id))
        await self._kept.delete(task_id, context)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """As the SDK's."""
        owner = resolve_user_scope(context)
        page = await self._kept.list(params, context)
        while quiet := [task for task in page.tasks if await self._is_quiet(task, context)]:
            await asyncio.gather(*(self._after_all(task, context) for task in quiet))
            # Their state is another now, and with it whether and where they are listed.
            page = await self._kept.list(params, context)
        for task in page.tasks:
            if live := self._live.get((owner, task.id)):
                task.CopyFrom(live[0])
        return page

    async def _check_open(self, task_id: str, context: ServerCallContext) -> None:
        kept = await self._kept.get(task_id, context)
        if kept is not None and kept.status.state in ENDED:
            # The SDK then lets the run go, and shows those who watch the task as it is kept.
            raise ConcurrentTaskModificationError(task_id)

    def _forget(self, key: tuple[str, str]) -> None:
        self._live.pop(key, None)
        if not self._live:
            self._settled.set()

    async def _is_quiet(self, task: Task, context: ServerCallContext) -> bool:
        """Whether nobody works on a task that is at work according to the database."""
        if not is_running(task) or (resolve_user_scope(context), task.id) in self._live:
            return False
        if self._at_work is None:
            return True
        # A task that has begun a moment ago may have no run yet.
        # Nor may the clock of another machine, which wrote that time, make a task look as if it were to begin.
        quiet_s = abs(time.time() - task.status.timestamp.ToNanoseconds() / 1e9)
        return quiet_s > LOST_AFTER_S and not await self._at_work(task, context)

    async def _after_all(self, task: Task, context: ServerCallContext) -> Task | None:
        """A quiet task, as it is when the process that had it has had time to write down its end; or given up."""
        if self._at_work is not None:
            await asyncio.sleep(_ENDS_WITHIN_S)
            found = await self._kept.get(task.id, context)
            if found is None or not await self._is_quiet(found, context):
                return found
            task = found
        await self._give_up(task, context)
        return task

    async def _give_up(self, task: Task, context: ServerCallContext) -> None:
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
        await self._kept.save(task, context)


def is_running(task: Task) -> bool:
    """Whether a task is at work, or is about to be."""
    return task.status.state in _RUNNING
