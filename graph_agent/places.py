"""Which sessions are the same: a session is a thread id in a place, and a place is where a saver keeps its threads."""

from __future__ import annotations

import sqlite3
from collections.abc import Hashable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from langgraph.checkpoint.base import BaseCheckpointSaver

_known: WeakKeyDictionary[BaseCheckpointSaver[Any], Hashable] = WeakKeyDictionary()


async def place_of(saver: BaseCheckpointSaver[Any]) -> Hashable:
    """Where a saver keeps its sessions: the `Path` of an SQLite database, else the saver itself, by its identity.

    Args:
        saver: The saver; an SQLite one of either kind is asked for its file once.
    """
    if saver not in _known:
        _known[saver] = await _file_of(saver) or id(saver)
    return _known[saver]


def place_of_blocking(saver: BaseCheckpointSaver[Any]) -> Hashable:
    """As `place_of`, for blocking entry points, whose savers block as well."""
    if saver not in _known:
        connection = getattr(saver, "conn", None)
        path = _path(connection.execute(_QUERY).fetchall()) if isinstance(connection, sqlite3.Connection) else None
        _known[saver] = path or id(saver)
    return _known[saver]


_QUERY = "PRAGMA database_list"


async def _file_of(saver: BaseCheckpointSaver[Any]) -> Path | None:
    connection = getattr(saver, "conn", None)
    if isinstance(connection, sqlite3.Connection):
        return _path(connection.execute(_QUERY).fetchall())
    if type(connection).__module__.startswith("aiosqlite"):
        await saver.setup()  # type: ignore[attr-defined]  # the SQLite saver's own: opens its connection where needed
        async with connection.execute(_QUERY) as cursor:  # type: ignore[union-attr]  # an aiosqlite connection, as its module says
            return _path(await cursor.fetchall())
    return None


def _path(rows: Any) -> Path | None:
    """The main database's file; None for one in memory."""
    file = next((row[2] for row in rows if row[1] == "main"), "")
    return Path(file).resolve() if file else None
