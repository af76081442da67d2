"""The SDK's tables for tasks and for whom to notify of them, in SQLite or PostgreSQL."""

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
from graph_agent.persistence.sqlite_connection import PatientConnection
from graph_agent.persistence.sqlite_files import Patience, check_database
from graph_agent.persistence.urls import is_postgres, without_password

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

_SQLITE = "sqlite:///"
_CONNECTIONS, _MORE_CONNECTIONS = 5, 5
"""How many are kept open to PostgreSQL, and how many may be opened beside them."""

# A client names its conversation; the SDK's column would refuse one with a name longer than a UUID.
_SHORT = (
    "SELECT 1 FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = 'tasks'"
    " AND column_name = 'context_id' AND character_maximum_length IS NOT NULL"
)
_WIDEN = "ALTER TABLE tasks ALTER COLUMN context_id TYPE text"


@asynccontextmanager
async def open_tables(url: str) -> AsyncIterator[tuple[TaskStore, PushNotificationConfigStore]]:
    """Open the tables, made where they are missing, and close them on leaving.

    Args:
        url: `sqlite:///FILE` or `postgresql://…`.

    Raises:
        ConfigError: On an address of another kind, or a database that cannot be reached.
    """
    # In a thread: drivers are imported, and a file's path is looked up.
    engine = await asyncio.to_thread(_engine, url)
    from graph_agent.a2a.server.database import QuietPushStore, QuietTaskStore

    tasks, push = QuietTaskStore(engine), QuietPushStore(engine)

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
            # The SDK looks for its tables before it makes them, and another process may have made them meanwhile.
            if not isinstance(error.orig, sqlite3.Error):
                raise
            await asyncio.sleep(patience.pause_s(error.orig))


async def _widen(engine: AsyncEngine) -> None:
    from sqlalchemy import text

    async with engine.begin() as connection:
        if (await connection.execute(text(_SHORT))).first() is not None:
            await connection.execute(text(_WIDEN))


def _engine(url: str) -> AsyncEngine:
    from sqlalchemy.ext.asyncio import create_async_engine

    if url.startswith(_SQLITE):
        path = url.removeprefix(_SQLITE)
        check_database(Path(path))
        return create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"factory": PatientConnection})
    if is_postgres(url):
        address = "postgresql+psycopg://" + url.partition("://")[2]
        return create_async_engine(address, pool_size=_CONNECTIONS, max_overflow=_MORE_CONNECTIONS, pool_pre_ping=True)
    shown = without_password(url)
    raise ConfigError(
        f"tasks={shown!r}: no such kind of database; use 'sqlite:///FILE', 'postgresql://…', or 'memory:'."
    )
