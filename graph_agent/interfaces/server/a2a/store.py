"""Stores tasks, state changes in a database and each token in memory; names the session of a task's conversation.

A *lease* is the lock on a session that the process which runs a task holds. A *lost* task is one that the database
lists as running although no process runs it.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from a2a import types
from a2a.server.cluster import ConcurrentTaskModificationError
from a2a.server.context import ServerCallContext
from a2a.server.owner_resolver import resolve_user_scope
from a2a.server.tasks import (
    DatabasePushNotificationConfigStore,
    DatabaseTaskStore,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    TaskStore,
)
from a2a.server.tasks.push_notification_config_store import PushNotificationConfigStore
from a2a.utils.errors import InternalError, InvalidParamsError
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.runtime import RunControl
from sqlalchemy.exc import SQLAlchemyError

from graph_agent.base._internal.failure_log import log_failure
from graph_agent.base.database_urls import file_of, is_postgres, without_password
from graph_agent.base.errors import ConfigError
from graph_agent.base.sqlite_connection import LockWaitConnection, Patience, check_sqlite_file
from graph_agent.interfaces.server.a2a.updates import TaskReporter, is_progress_message
from graph_agent.session.activity import running_check
from graph_agent.session.compiled import CompiledAgentGraph
from graph_agent.session.driver import RunHandle

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncEngine


_SQLITE = "sqlite:///"
_POOL_SIZE, _POOL_OVERFLOW = 5, 5
"""Connections to PostgreSQL: permanent ones, and additional temporary ones."""

# Clients choose the conversation id; the SDK's column refuses ids longer than a UUID.
_HAS_LENGTH_LIMIT = (
    "SELECT 1 FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = 'tasks'"
    " AND column_name = 'context_id' AND character_maximum_length IS NOT NULL"
)
_WIDEN = "ALTER TABLE tasks ALTER COLUMN context_id TYPE text"


@asynccontextmanager
async def open_task_tables(url: str) -> AsyncIterator[tuple[TaskStore, PushNotificationConfigStore]]:
    """Open the SDK's tables of tasks and push configurations, create missing ones, and close the connections on exit.

    Raises `ConfigError` for a URL of another kind, or a database that cannot be opened.
    """
    # In a thread: it imports drivers and accesses the file system.
    engine = await asyncio.to_thread(_engine, url)

    tasks, push = MaskedTaskStore(engine), MaskedPushStore(engine)

    async def make(connection: object = None) -> None:
        """Create the tables and indexes that are missing."""
        await tasks.initialize()
        await push.initialize()
        if is_postgres(url):
            await _widen(engine)
        else:
            async with engine.begin() as opened:
                await opened.run_sync(_make_indexes)

    try:
        if is_postgres(url):
            from graph_agent.base.postgres_tables import make_tables

            await make_tables(url, make)
        else:
            await _make_in_file(make)
        yield tasks, push
    finally:
        await engine.dispose()


async def _make_in_file(make: Callable[[], Awaitable[None]]) -> None:
    """Create the tables of a SQLite file, and repeat that while another process creates or locks them."""
    from sqlalchemy.exc import DBAPIError

    patience, made = Patience(), False
    while not made:
        try:
            await make()
            made = True
        except DBAPIError as error:
            # The SDK checks for its tables before it creates them; another process may create them in between.
            if not isinstance(error.orig, sqlite3.Error):
                raise
            await asyncio.sleep(patience.pause_s(error.orig))


def _make_indexes(connection: Connection) -> None:
    """Create the indexes that are missing: in a file, a process may be killed between a table and its indexes."""
    from a2a.server.models import PushNotificationConfigModel, TaskModel

    for model in (TaskModel, PushNotificationConfigModel):
        for index in model.metadata.tables[model.__tablename__].indexes:
            index.create(connection, checkfirst=True)


async def _widen(engine: AsyncEngine) -> None:
    """Remove the limit of the length of conversation ids, which an earlier version of the SDK's table has."""
    from sqlalchemy import text

    async with engine.begin() as connection:
        if (await connection.execute(text(_HAS_LENGTH_LIMIT))).first() is not None:
            await connection.execute(text(_WIDEN))


def _engine(url: str) -> AsyncEngine:
    """Return the engine of a database; raise `ConfigError` for a URL of another kind, or an unusable file."""
    from sqlalchemy import URL
    from sqlalchemy.ext.asyncio import create_async_engine

    if url.startswith(_SQLITE):
        path = file_of(url, field="tasks")
        check_sqlite_file(path)
        in_file = URL.create("sqlite+aiosqlite", database=str(path))
        return create_async_engine(in_file, connect_args={"factory": LockWaitConnection})
    if is_postgres(url):
        address = "postgresql+psycopg://" + url.partition("://")[2]
        return create_async_engine(address, pool_size=_POOL_SIZE, max_overflow=_POOL_OVERFLOW, pool_pre_ping=True)
    shown = without_password(url)
    raise ConfigError(
        f"tasks={shown!r}: no such kind of database; use 'sqlite:///FILE', 'postgresql://…', or 'memory:'."
    )


SessionIdOf = Callable[[str, str], str]
"""Builds a session id from a user name (empty for an anonymous user) and a conversation id."""

TaskLease = Callable[[types.Task, ServerCallContext], Awaitable[bool]]
"""Whether any process runs the conversation of a caller's task."""


def session_id_of(user: str, context_id: str) -> str:
    """Return the session id of a conversation: the conversation id, prefixed by the user name if there is one.

    Clients choose the conversation id; the prefix, e.g. `alice/c1`, prevents access to another user's conversation.
    """
    if user:
        return f"{quote(user, safe='@')}/{context_id}"
    # An anonymous user's id must not match a user's prefixed id.
    return f"/{context_id}" if "/" in context_id else context_id


def task_lease(graph: CompiledAgentGraph, session_ids: SessionIdOf = session_id_of) -> TaskLease:
    """Return an async function that returns whether any process runs a task's conversation.

    `session_ids` builds the session's id from user and conversation.
    """
    saver = graph.checkpointer
    assert isinstance(saver, BaseCheckpointSaver)
    is_running = running_check(saver)

    async def has_lease(task: types.Task, context: ServerCallContext) -> bool:
        return await is_running(session_ids(context.user.user_name, task.context_id))

    return has_lease


LOST = "The server stopped while it ran this task. Send the message again to continue the conversation."
"""Message of a lost task."""

LOST_AFTER_S = 10.0
"""Seconds without an update of a running task after which its session lock is checked."""

_FINAL_WRITE_S = 1.0
"""Seconds to wait for a task without a run: its process may be writing the final state, or starting the run."""

_RETRY_PAUSES_S = (0.2, 1.0, 3.0)
"""Seconds between attempts to write the final state of a task."""

ENDED_STATES = frozenset(
    {
        types.TaskState.TASK_STATE_COMPLETED,
        types.TaskState.TASK_STATE_FAILED,
        types.TaskState.TASK_STATE_CANCELED,
        types.TaskState.TASK_STATE_REJECTED,
    }
)
"""States that a task does not leave."""

_RUNNING = frozenset({types.TaskState.TASK_STATE_SUBMITTED, types.TaskState.TASK_STATE_WORKING})


@dataclass(frozen=True)
class Stores:
    """The stores of a server: tasks and push configurations."""

    tasks: TaskStore
    push: PushNotificationConfigStore


@asynccontextmanager
async def open_stores(url: str, *, task_lease: TaskLease | None = None) -> AsyncIterator[Stores]:
    """Open the stores of a server, in the SDK's tables `tasks` and `push_notification_configs`; close them on exit.

    Args:
        url: The database, which may be that of the sessions; `memory:` for one in memory.
        task_lease: Returns whether any process runs a task; None if only this process uses the database.

    Raises:
        ConfigError: The URL is of another kind, or the database cannot be reached.
    """
    if url == "memory:":
        yield Stores(InMemoryTaskStore(), InMemoryPushNotificationConfigStore())
        return
    async with open_task_tables(url) as (tasks, push):
        yield Stores(LiveTaskStore(tasks, task_lease), push)


class LiveTaskStore(TaskStore):
    """Keeps running tasks in memory, and writes a task to the database when its state changes.

    The SDK saves the whole task for each token of its answer, which would take one transaction per token. A lost task
    is stored and returned as failed.

    Args:
        store: The SDK's store of the database.
        task_lease: Returns whether any process runs a task; None if only this process uses the database.
    """

    def __init__(self, store: TaskStore, task_lease: TaskLease | None = None) -> None:
        self._store = store
        self._has_lease = task_lease
        self._live: dict[tuple[str, str], tuple[types.Task, int]] = {}
        """User and task id → running task of this process, and the state that is stored."""
        self._settled = asyncio.Event()
        self._settled.set()

    @property
    def shared(self) -> bool:
        """Whether other processes may run tasks of the same database."""
        return self._has_lease is not None

    async def settled(self) -> None:
        """Wait until no task runs and the final states of all tasks are stored."""
        await self._settled.wait()

    def abandon(self) -> None:
        """Stop waiting for tasks whose runs were cancelled; without a final state, they are read as failed."""
        self._live.clear()
        self._settled.set()

    async def run_by_other_process(self, task_id: str, context: ServerCallContext) -> types.Task | None:
        """Return the caller's task if another process runs it, else None; may mark a lost task as failed."""
        if self._has_lease is None or (resolve_user_scope(context), task_id) in self._live:
            return None
        task = await self.get(task_id, context)
        # The task may have started in this process during the read.
        here = (resolve_user_scope(context), task_id) in self._live
        return task if task is not None and is_running_task(task) and not here else None

    async def save(self, task: types.Task, context: ServerCallContext) -> None:
        """Keep a running task in memory, and store it if its state has changed; a final state is written with retries.

        Raises `ConcurrentTaskModificationError` if another process has ended the task.
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
        """Store a task, again after 0.2, 1 and 3 seconds; then raise `InternalError`."""
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
        """Return a copy of a running task, or the stored task, a lost one as failed; None if there is none."""
        if live := self._live.get((resolve_user_scope(context), task_id)):
            return deepcopy(live[0])
        task = await self._store.get(task_id, context)
        if task is not None and await self._is_abandoned(task, context):
            task = await self._recover(task, context)
        return task

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Delete a task from memory and database."""
        self._forget((resolve_user_scope(context), task_id))
        await self._store.delete(task_id, context)

    async def list(self, params: types.ListTasksRequest, context: ServerCallContext) -> types.ListTasksResponse:
        """Return a page of the caller's tasks; lost ones are stored as failed first."""
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
        """Remove a task from memory, given its user and id."""
        self._live.pop(key, None)
        if not self._live:
            self._settled.set()

    async def _is_abandoned(self, task: types.Task, context: ServerCallContext) -> bool:
        """Return whether the database lists a task as running but no process runs it."""
        if not is_running_task(task) or (resolve_user_scope(context), task.id) in self._live:
            return False
        if self._has_lease is None:
            return True
        # A task that was just created may have no run yet. The absolute value allows for another machine's clock,
        # which may be ahead of ours.
        age_s = abs(time.time() - task.status.timestamp.ToNanoseconds() / 1e9)
        return age_s > LOST_AFTER_S and not await self._has_lease(task, context)

    async def _recover(self, task: types.Task, context: ServerCallContext) -> types.Task | None:
        """Wait a second for the final state of a task without a run, and store it as failed if none came.

        Returns the task.
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
        """Change a task to failed, with a message, and store it."""
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
    """Return whether a task is submitted or working."""
    return task.status.state in _RUNNING


logger = logging.getLogger("graph_agent.server.a2a.store")

_NUL = "\x00"


class MaskedTaskStore(DatabaseTaskStore):
    """The SDK's task store; a failure of the database is an `InternalError` without its details."""

    async def save(self, task: types.Task, context: ServerCallContext) -> None:
        """Store a task; raise `InternalError` if the database fails."""
        with _masked_errors("Writing an A2A task"):
            await super().save(task, context)

    async def get(self, task_id: str, context: ServerCallContext) -> types.Task | None:
        """Return a task; None if there is none, or the id has a NUL character."""
        if _NUL in task_id:
            return None
        with _masked_errors("Reading an A2A task"):
            return await super().get(task_id, context)

    async def list(self, params: types.ListTasksRequest, context: ServerCallContext) -> types.ListTasksResponse:
        """Return a page of the caller's tasks."""
        with _masked_errors("Listing the A2A tasks"):
            return await super().list(params, context)


class MaskedPushStore(DatabasePushNotificationConfigStore):
    """The SDK's store of push configurations; a failure of the database is an `InternalError` without its details."""

    async def set_info(
        self, task_id: str, notification_config: types.TaskPushNotificationConfig, context: ServerCallContext
    ) -> types.TaskPushNotificationConfig:
        """Store a push configuration, and return it.

        Raises `InvalidParamsError` for an id with NUL, and `InternalError` if the database fails.
        """
        _check_no_nul(notification_config.id)
        with _masked_errors("Writing a push configuration"):
            return await super().set_info(task_id, notification_config, context)

    async def get_info(self, task_id: str, context: ServerCallContext) -> list[types.TaskPushNotificationConfig]:
        """Return the push configurations of a task."""
        with _masked_errors("Reading push configurations"):
            return await super().get_info(task_id, context)

    async def delete_info(self, task_id: str, context: ServerCallContext, config_id: str | None = None) -> None:
        """Delete one push configuration of a task, or all of them for None.

        Raises `InvalidParamsError` for an id with NUL.
        """
        _check_no_nul(config_id or "")
        with _masked_errors("Deleting a push configuration"):
            await super().delete_info(task_id, context, config_id)


@contextmanager
def _masked_errors(what: str) -> Iterator[None]:
    """Log a failure of the database with `what` was done, and raise `InternalError` in its place."""
    try:
        yield
    except SQLAlchemyError as error:
        log_failure(logger, what, error)
        raise InternalError(message="The server could not access its tasks; see the server log.") from None


def _check_no_nul(id_: str) -> None:
    """Raise `InvalidParamsError` for an id with NUL, which PostgreSQL cannot store."""
    if _NUL in id_:
        raise InvalidParamsError(message="id holds a NUL character; send an id without it.")


class ConversationStore(TaskStore):
    """Stores tasks without progress in their history.

    The SDK appends the message of each status update to the history when the next update arrives. The protocol allows
    an agent to omit transient messages, so `historyLength` counts the client's messages and the agent's questions. The
    newest progress stays in the task's status.
    """

    def __init__(self, store: TaskStore) -> None:
        self._store = store

    async def save(self, task: types.Task, context: ServerCallContext) -> None:
        """Store a task without progress; removes progress from `task`, the SDK's own object, too."""
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


class TaskRun:
    """Processing of one message of a task, until the task ends or asks a question."""

    def __init__(self) -> None:
        self.scope = RunHandle()
        """Handle of the run, which aborts it."""
        self.control = RunControl()
        """Stops the run at the next superstep boundary."""
        self.ended = asyncio.Event()
        """Set when the message is processed."""

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled, before or after the run started."""
        return self.scope.aborted

    def cancel(self) -> None:
        """Stop the run, or prevent its start if it waits for the lock."""
        self.scope.abort()

    @asynccontextmanager
    async def acquire(self, lock: asyncio.Lock) -> AsyncIterator[bool]:
        """Acquire the conversation's lock, and release it on exit.

        Yields True with the lock, and False, without it, if the run was cancelled before.
        """
        with self.scope.interruptible() as waiting:
            await lock.acquire()
        if waiting.cancelled_caught:
            yield False
            return
        try:
            yield not self.cancelled
        finally:
            lock.release()


@asynccontextmanager
async def heartbeats(reporter: TaskReporter, every_s: float) -> AsyncIterator[None]:
    """Send a `working` update after each `every_s` seconds without another update, within the context."""

    async def beat() -> None:
        """Send the updates."""
        while True:
            sent = reporter.updates_sent
            await asyncio.sleep(every_s)
            if reporter.updates_sent == sent:
                await reporter.working()

    heartbeat = asyncio.create_task(beat())
    try:
        yield
    finally:
        heartbeat.cancel()
