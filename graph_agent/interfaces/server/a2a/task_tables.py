"""Opens the database's tables of tasks and push configurations, and hides the details of its failures."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from a2a import types
from a2a.server.context import ServerCallContext
from a2a.server.tasks import DatabasePushNotificationConfigStore, DatabaseTaskStore, TaskStore
from a2a.server.tasks.push_notification_config_store import PushNotificationConfigStore
from a2a.utils.errors import InternalError, InvalidParamsError
from sqlalchemy.exc import SQLAlchemyError

from graph_agent.base._internal.failure_log import log_failure
from graph_agent.base.database_urls import file_of, is_postgres, without_password
from graph_agent.base.errors import ConfigError
from graph_agent.base.sqlite_connection import LockWaitConnection, Patience, check_sqlite_file

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

logger = logging.getLogger("graph_agent.server.a2a.store")

_NUL = "\x00"


@asynccontextmanager
async def open_task_tables(url: str) -> AsyncIterator[tuple[TaskStore, PushNotificationConfigStore]]:
    """Open the SDK's tables of tasks and of push configurations, creating missing ones; yield both stores, and close
    the connections on exit.

    Raises `ConfigError` for a URL of an unknown kind, or a database that cannot be opened.
    """
    # In a thread: it imports drivers and accesses the file system.
    engine = await asyncio.to_thread(_engine, url)

    tasks, push = MaskedTaskStore(engine), MaskedPushStore(engine)

    async def make(connection: object = None) -> None:
        """Create the tables and indexes that are missing; in PostgreSQL, also remove the length limit that older
        versions gave to the column of conversation ids. `connection` is not used.
        """
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
    """Create the tables of a SQLite file by calling `make`, again while another process creates or locks them.

    Raises `sqlite3.Error` if that takes too long, or the error has another cause.
    """
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
    """Create the indexes that are missing, because a process may have been killed between a table of the file and its
    indexes.
    """
    from a2a.server.models import PushNotificationConfigModel, TaskModel

    for model in (TaskModel, PushNotificationConfigModel):
        for index in model.metadata.tables[model.__tablename__].indexes:
            index.create(connection, checkfirst=True)


async def _widen(engine: AsyncEngine) -> None:
    """Remove the length limit of the column of conversation ids in PostgreSQL, which an earlier version of the SDK set.
    Does nothing to a table without the limit.
    """
    from sqlalchemy import text

    async with engine.begin() as connection:
        if (await connection.execute(text(_HAS_LENGTH_LIMIT))).first() is not None:
            await connection.execute(text(_WIDEN))


def _engine(url: str) -> AsyncEngine:
    """Return the SQLAlchemy engine of a database: for `sqlite:///FILE`, or for PostgreSQL with up to 10 connections.

    Raises `ConfigError` for a URL of another kind, or a file that cannot be used.
    """
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


class MaskedTaskStore(DatabaseTaskStore):
    """The SDK's task store.

    Failures of the database are logged, and raised as `InternalError` without their details.
    """

    async def save(self, task: types.Task, context: ServerCallContext) -> None:
        """Store a task; raise `InternalError` if the database fails."""
        with _masked_errors("Writing an A2A task"):
            await super().save(task, context)

    async def get(self, task_id: str, context: ServerCallContext) -> types.Task | None:
        """Return a task; None if there is none, or the id has a NUL character. Raises `InternalError` if the database
        fails.
        """
        if _NUL in task_id:
            return None
        with _masked_errors("Reading an A2A task"):
            return await super().get(task_id, context)

    async def list(self, params: types.ListTasksRequest, context: ServerCallContext) -> types.ListTasksResponse:
        """Return a page of the caller's tasks; raise `InternalError` if the database fails."""
        with _masked_errors("Listing the A2A tasks"):
            return await super().list(params, context)


class MaskedPushStore(DatabasePushNotificationConfigStore):
    """The SDK's store of push configurations.

    Failures of the database are logged, and raised as `InternalError` without their details.
    """

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
        """Return the push configurations of a task; raise `InternalError` if the database fails."""
        with _masked_errors("Reading push configurations"):
            return await super().get_info(task_id, context)

    async def delete_info(self, task_id: str, context: ServerCallContext, config_id: str | None = None) -> None:
        """Delete a push configuration of a task by its id; all of the task if the id is None.

        Raises `InvalidParamsError` for an id with NUL, and `InternalError` if the database fails.
        """
        _check_no_nul(config_id or "")
        with _masked_errors("Deleting a push configuration"):
            await super().delete_info(task_id, context, config_id)


@contextmanager
def _masked_errors(what: str) -> Iterator[None]:
    """Context manager that logs a failure of the database (`SQLAlchemyError`), and raises `InternalError` in its place;
    `what` names the operation in the log. Other exceptions pass.
    """
    try:
        yield
    except SQLAlchemyError as error:
        log_failure(logger, what, error)
        raise InternalError(message="The server could not access its tasks; see the server log.") from None


def _check_no_nul(id_: str) -> None:
    """Raise `InvalidParamsError` for an id with NUL, which PostgreSQL cannot store."""
    if _NUL in id_:
        raise InvalidParamsError(message="id holds a NUL character; send an id without it.")
