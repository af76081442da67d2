"""Where tasks are kept: a database that survives a restart, and memory for what changes with every token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from a2a.server.context import ServerCallContext
from a2a.server.owner_resolver import resolve_user_scope
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore, TaskStore
from a2a.server.tasks.push_notification_config_store import PushNotificationConfigStore
from a2a.types import ListTasksRequest, ListTasksResponse, Message, Part, Role, Task, TaskState

from graph_agent.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

LOST = "The server stopped while it worked on this task. Send the message again to go on with the conversation."

_RUNNING = frozenset({TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING})


@dataclass(frozen=True)
class Stores:
    """Where a server keeps its tasks, and whom it notifies of them."""

    tasks: TaskStore
    push: PushNotificationConfigStore


@asynccontextmanager
async def open_stores(url: str, *, alone: bool = True) -> AsyncIterator[Stores]:
    """Open the stores of a server, and close them on leaving.

    The tables are the SDK's: `tasks` and `push_notification_configs`.

    Args:
        url: `memory:`, `sqlite:///FILE`, or `postgresql://…`; the database of the sessions will do.
        alone: Whether this is the one process that has the database's tasks. Where there are others, each token of an
            answer is written down, and a task whose process was lost stays as it was.

    Raises:
        ConfigError: On an address of another kind.
    """
    if url == "memory:":
        yield Stores(InMemoryTaskStore(), InMemoryPushNotificationConfigStore())
        return
    # In a thread: drivers are imported, and a file's path is looked up.
    engine = await asyncio.to_thread(_engine, _async_url(url))
    from a2a.server.tasks import DatabasePushNotificationConfigStore, DatabaseTaskStore

    try:
        tasks = DatabaseTaskStore(engine)
        await tasks.initialize()
        push = DatabasePushNotificationConfigStore(engine)
        await push.initialize()
        yield Stores(LiveTaskStore(tasks) if alone else tasks, push)
    finally:
        await engine.dispose()


def _engine(url: str) -> AsyncEngine:
    from sqlalchemy.ext.asyncio import create_async_engine

    return create_async_engine(url)


def _async_url(url: str) -> str:
    for plain, driver in (("sqlite:///", "sqlite+aiosqlite:///"), ("postgresql://", "postgresql+asyncpg://")):
        if url.startswith(plain):
            return driver + url.removeprefix(plain)
    raise ConfigError(f"tasks={url!r}: no such kind of database; use 'sqlite:///FILE', 'postgresql://…', or 'memory:'.")


class LiveTaskStore(TaskStore):
    """Keeps the tasks at work in memory, and writes a task down when its state changes.

    The SDK saves the whole task at each token of its answer, which would cost a long answer its length in transactions.
    A task that is at work according to the database, and that no one here works on, was lost with the process that did:
    it is told, and kept, as failed. So one process has the database's tasks at a time.

    Args:
        kept: The store that survives.
    """

    def __init__(self, kept: TaskStore) -> None:
        self._kept = kept
        self._live: dict[tuple[str, str], tuple[Task, int]] = {}

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """As the SDK's."""
        key = resolve_user_scope(context), task.id
        state = task.status.state
        _, written = self._live.get(key, (None, None))
        if state in _RUNNING:
            self._live[key] = task, state
            if written == state:
                return
        await self._kept.save(task, context)
        if state not in _RUNNING:
            self._live.pop(key, None)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """As the SDK's."""
        if live := self._live.get((resolve_user_scope(context), task_id)):
            copy = Task()
            copy.CopyFrom(live[0])
            return copy
        task = await self._kept.get(task_id, context)
        return task if task is None else await self._found(task, context)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """As the SDK's."""
        self._live.pop((resolve_user_scope(context), task_id), None)
        await self._kept.delete(task_id, context)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """As the SDK's."""
        owner = resolve_user_scope(context)
        page = await self._kept.list(params, context)
        while lost := [each for each in page.tasks if _is_running(each) and (owner, each.id) not in self._live]:
            for task in lost:
                await self._found(task, context)
            # Their state is another now, and with it whether and where they are listed.
            page = await self._kept.list(params, context)
        for task in page.tasks:
            if live := self._live.get((owner, task.id)):
                task.CopyFrom(live[0])
        return page

    async def _found(self, task: Task, context: ServerCallContext) -> Task:
        if not _is_running(task):
            return task
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
        return task


def _is_running(task: Task) -> bool:
    return task.status.state in _RUNNING
