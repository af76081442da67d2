"""The SDK's tables for tasks and push configurations, in SQLite or PostgreSQL."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from a2a.server.tasks import TaskStore
from a2a.server.tasks.push_notification_config_store import PushNotificationConfigStore

from graph_agent.errors import ConfigError
from graph_agent.persistence.sqlite_connection import LockWaitConnection
from graph_agent.persistence.sqlite_files import Patience, check_database
from graph_agent.persistence.urls import is_postgres, without_password

if TYPE_CHECKING:
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
async def open_tables(url: str) -> AsyncIterator[tuple[TaskStore, PushNotificationConfigStore]]:
    """Open the tables, create missing ones, and close the connections on exit.

    Args:
        url: `sqlite:///FILE` or `postgresql://…`.

    Raises:
        ConfigError: If the address is of another kind, or the database cannot be reached.
    """
    # In a thread: it imports drivers and accesses the file system.
    engine = await asyncio.to_thread(_engine, url)
    from graph_agent.a2a.server.database import MaskedPushStore, MaskedTaskStore

    tasks, push = MaskedTaskStore(engine), MaskedPushStore(engine)

    async def make(connection: object = None) -> None:
        await tasks.initialize()
        await push.initialize()
        if is_postgres(url):
            await _widen(engine)

    try:
        if is_postgres(url):
            from graph_agent.persistence.postgres import make_tables

            await make_tables(url, make)
        else:
            await _make_in_file(make)
        yield tasks, push
    finally:
        await engine.dispose()


async def _make_in_file(make: Callable[[], Awaitable[None]]) -> None:
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


async def _widen(engine: AsyncEngine) -> None:
    from sqlalchemy import text

    async with engine.begin() as connection:
        if (await connection.execute(text(_HAS_LENGTH_LIMIT))).first() is not None:
            await connection.execute(text(_WIDEN))


def _engine(url: str) -> AsyncEngine:
    from sqlalchemy.ext.asyncio import create_async_engine

    if url.startswith(_SQLITE):
        path = url.removeprefix(_SQLITE)
        check_database(Path(path))
        return create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"factory": LockWaitConnection})
    if is_postgres(url):
        address = "postgresql+psycopg://" + url.partition("://")[2]
        return create_async_engine(address, pool_size=_POOL_SIZE, max_overflow=_POOL_OVERFLOW, pool_pre_ping=True)
    shown = without_password(url)
    raise ConfigError(
        f"tasks={shown!r}: no such kind of database; use 'sqlite:///FILE', 'postgresql://…', or 'memory:'."
    )
