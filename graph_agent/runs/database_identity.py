"""Which sessions are the same: a session is a thread id in a place, and a place is where a saver keeps its threads."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from graph_agent.runs.postgres_locks import PostgresPlace

# By identity: a saver need not be hashable, and two that are equal may still keep their threads apart.
_known: dict[int, Hashable] = {}


async def place_of(saver: BaseCheckpointSaver[Any]) -> Hashable:
    """Where a saver keeps its sessions.

    It is the `Path` of an SQLite database, the `PostgresPlace` of one in PostgreSQL, else the saver itself, by its
    identity.

    Args:
        saver: The saver; one of a database is asked where that is once.
    """
    known = _known.get(id(saver))
    return known if known is not None else _remember(saver, await _database_of(saver))


def place_of_blocking(saver: BaseCheckpointSaver[Any]) -> Hashable:
    """As `place_of`, for blocking entry points."""
    known = _known.get(id(saver))
    if known is not None:
        return known
    if (file := _known_file(saver)) is not None:
        return _remember(saver, file)
    connection: Any = getattr(saver, "conn", None)
    if _is_sqlite3(connection):
        return _remember(saver, _path(connection.execute(_QUERY).fetchall()))
    if _is_psycopg(connection) and not _is_asynchronous_pool(connection):
        return _remember(saver, _postgres_of(connection))
    if not _is_aiosqlite(connection) and not _is_psycopg(connection):
        return _remember(saver, None)
    loop = getattr(saver, "loop", None)
    if loop is not None and loop.is_running() and loop is not _running_loop():
        # Such a saver does its own blocking work the same way: on the loop it was made on, in another thread.
        return asyncio.run_coroutine_threadsafe(place_of(saver), loop).result()
    # It cannot be asked now. That is not its place for good: from its loop it can.
    return id(saver)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _remember(saver: BaseCheckpointSaver[Any], database: Path | PostgresPlace | None) -> Hashable:
    place = database or id(saver)
    if id(saver) not in _known:
        # The next saver may get the same identity.
        weakref.finalize(saver, _known.pop, id(saver), None).atexit = False
    _known[id(saver)] = place
    return place


_QUERY = "PRAGMA database_list"


async def _database_of(saver: BaseCheckpointSaver[Any]) -> Path | PostgresPlace | None:
    if (file := _known_file(saver)) is not None:
        return file
    connection: Any = getattr(saver, "conn", None)
    if _is_sqlite3(connection):
        return _path(connection.execute(_QUERY).fetchall())
    if _is_aiosqlite(connection):
        await saver.setup()  # type: ignore[attr-defined]  # the SQLite saver's own: opens its connection where needed
        async with connection.execute(_QUERY) as cursor:
            return _path(await cursor.fetchall())
    if _is_psycopg(connection):
        if _is_asynchronous_pool(connection):
            async with connection.connection() as held:
                return _postgres_of(held)
        return _postgres_of(connection)
    return None


def _known_file(saver: BaseCheckpointSaver[Any]) -> Path | None:
    # Our own saver's connection may be at work on its thread; it says itself where its database is.
    file = getattr(saver, "database", None)
    return file if isinstance(file, Path) else None


def _is_sqlite3(connection: Any) -> bool:
    # By name, as for the others: a saver of another kind needs none of the drivers.
    return any(kind.__module__ == "sqlite3" for kind in type(connection).__mro__)


def _is_aiosqlite(connection: Any) -> bool:
    return type(connection).__module__.startswith("aiosqlite")


def _path(rows: Any) -> Path | None:
    """The main database's file; None for one in memory."""
    file = next((row[2] for row in rows if row[1] == "main"), "")
    return Path(file).resolve() if file else None


def _is_psycopg(connection: Any) -> bool:
    return type(connection).__module__.partition(".")[0] in ("psycopg", "psycopg_pool")


def _is_asynchronous_pool(connection: Any) -> bool:
    if not type(connection).__module__.startswith("psycopg_pool"):
        return False
    from psycopg_pool import AsyncConnectionPool

    return isinstance(connection, AsyncConnectionPool)


def _postgres_of(connection: Any) -> PostgresPlace:
    """The place of a connection, or of a pool that blocks."""
    if hasattr(connection, "getconn"):
        with connection.connection() as held:
            return _postgres_of(held)
    from psycopg.conninfo import make_conninfo

    info = connection.info
    given = info.get_parameters()
    conninfo = make_conninfo(**{**given, "application_name": "graph-agent locks", "password": info.password or None})
    return PostgresPlace(info.host, info.port, info.dbname, info.user, given.get("options", ""), conninfo)
