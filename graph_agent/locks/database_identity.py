"""Identifies the database behind a checkpointer, within which a session has one run at a time.

LangGraph's own SQLite and PostgreSQL savers do not publish their address, so their connection is queried once. Users
who pass such a saver as `checkpointer=`, or run one database under two kinds of savers, need it: without an identity,
each saver object would guard its sessions alone, and two processes could run one session.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from graph_agent.locks.postgres import PostgresAddress

# By identity: a saver need not be hashable, and two equal savers may hold different threads.
_known: dict[int, Hashable] = {}

_DATABASES = "PRAGMA database_list"


async def database_key(saver: BaseCheckpointSaver[Any]) -> Hashable:
    """Return the identity of a saver's database.

    Returns:
        The `Path` of an SQLite file, the `PostgresAddress` of a PostgreSQL database, else the `id` of the saver.
    """
    if (known := _known.get(id(saver))) is not None:
        return known
    connection: Any = getattr(saver, "conn", None)
    if not _needs_its_loop(connection):
        return _remember(saver, _database_of(saver, connection))
    if _driver(connection) == "aiosqlite":
        await saver.setup()  # type: ignore[attr-defined]  # the SQLite saver's own: opens its connection where needed
        async with connection.execute(_DATABASES) as cursor:
            return _remember(saver, _path(await cursor.fetchall()))
    async with connection.connection() as lent:
        return _remember(saver, _postgres_place(lent))


def database_key_blocking(saver: BaseCheckpointSaver[Any]) -> Hashable:
    """Behaves like `database_key`, for blocking entry points."""
    if (known := _known.get(id(saver))) is not None:
        return known
    connection: Any = getattr(saver, "conn", None)
    if not _needs_its_loop(connection):
        return _remember(saver, _database_of(saver, connection))
    loop = getattr(saver, "loop", None)
    if loop is not None and loop.is_running() and loop is not _running_loop():
        # LangGraph's asynchronous savers serve blocking calls in the same way.
        return asyncio.run_coroutine_threadsafe(database_key(saver), loop).result()
    # Not remembered: the connection can be queried later, from its own loop.
    return id(saver)


def _remember(saver: BaseCheckpointSaver[Any], database: Path | PostgresAddress | None) -> Hashable:
    place = database or id(saver)
    if id(saver) not in _known:
        # The next saver may get the same `id`.
        weakref.finalize(saver, _known.pop, id(saver), None).atexit = False
    _known[id(saver)] = place
    return place


def _driver(connection: Any) -> str:
    # By name, as for `sqlite3` below: importing the package must not load a driver.
    return type(connection).__module__.partition(".")[0]


def _needs_its_loop(connection: Any) -> bool:
    if _driver(connection) != "psycopg_pool":
        return _driver(connection) == "aiosqlite"
    from psycopg_pool import AsyncConnectionPool

    return isinstance(connection, AsyncConnectionPool)


def _database_of(saver: BaseCheckpointSaver[Any], connection: Any) -> Path | PostgresAddress | None:
    file = getattr(saver, "database", None)
    if isinstance(file, Path):
        return file  # of `open_saver`: its connection may be busy on its thread
    if any(kind.__module__ == "sqlite3" for kind in type(connection).__mro__):
        return _path(connection.execute(_DATABASES).fetchall())
    if _driver(connection) == "psycopg_pool":
        with connection.connection() as lent:
            return _postgres_place(lent)
    return _postgres_place(connection) if _driver(connection) == "psycopg" else None


def _path(rows: Any) -> Path | None:
    """The main database's file; None for one in memory."""
    file = next((row[2] for row in rows if row[1] == "main"), "")
    return Path(file).resolve() if file else None


def _postgres_place(connection: Any) -> PostgresAddress:
    from psycopg.conninfo import make_conninfo

    info = connection.info
    given = info.get_parameters()
    conninfo = make_conninfo(**{**given, "application_name": "graph-agent locks", "password": info.password or None})
    return PostgresAddress(info.host, info.port, info.dbname, info.user, given.get("options", ""), conninfo)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
