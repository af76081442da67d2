"""Which sessions are the same: a session is a thread id in a place, and a place is where a saver keeps its threads."""

from __future__ import annotations

import asyncio
import sqlite3
import weakref
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

# By identity: a saver need not be hashable, and two that are equal may still keep their threads apart.
_known: dict[int, Hashable] = {}


async def place_of(saver: BaseCheckpointSaver[Any]) -> Hashable:
    """Where a saver keeps its sessions: the `Path` of an SQLite database, else the saver itself, by its identity.

    Args:
        saver: The saver; an SQLite one of either kind is asked for its file once.
    """
    known = _known.get(id(saver))
    return known if known is not None else _remember(saver, await _file_of(saver))


def place_of_blocking(saver: BaseCheckpointSaver[Any]) -> Hashable:
    """As `place_of`, for blocking entry points."""
    known = _known.get(id(saver))
    if known is not None:
        return known
    connection = getattr(saver, "conn", None)
    if isinstance(connection, sqlite3.Connection):
        return _remember(saver, _path(connection.execute(_QUERY).fetchall()))
    if not _is_aiosqlite(connection):
        return _remember(saver, None)
    loop = getattr(saver, "loop", None)
    if loop is not None and loop.is_running():
        # Such a saver does its own blocking work the same way: on the loop it was made on, in another thread.
        return asyncio.run_coroutine_threadsafe(place_of(saver), loop).result()
    # It cannot be asked now. That is not its place for good: from its loop it can.
    return id(saver)


def _remember(saver: BaseCheckpointSaver[Any], file: Path | None) -> Hashable:
    place = file or id(saver)
    if id(saver) not in _known:
        # The next saver may get the same identity.
        weakref.finalize(saver, _known.pop, id(saver), None).atexit = False
    _known[id(saver)] = place
    return place


_QUERY = "PRAGMA database_list"


async def _file_of(saver: BaseCheckpointSaver[Any]) -> Path | None:
    connection = getattr(saver, "conn", None)
    if isinstance(connection, sqlite3.Connection):
        return _path(connection.execute(_QUERY).fetchall())
    if _is_aiosqlite(connection):
        await saver.setup()  # type: ignore[attr-defined]  # the SQLite saver's own: opens its connection where needed
        async with connection.execute(_QUERY) as cursor:  # type: ignore[union-attr]  # an aiosqlite connection, as its module says
            return _path(await cursor.fetchall())
    return None


def _is_aiosqlite(connection: Any) -> bool:
    return type(connection).__module__.startswith("aiosqlite")


def _path(rows: Any) -> Path | None:
    """The main database's file; None for one in memory."""
    file = next((row[2] for row in rows if row[1] == "main"), "")
    return Path(file).resolve() if file else None
