"""Reads the notes to a session from the table of LangGraph's Store, with the saver of the same database.

A note is a message to a session from outside its run. Programs that only read sessions, or have no Store, then see
notes that no run has processed.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, LiteralString

from graph_agent.base.inbox import ControlMessage, inbox_namespace, note_from

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg_pool import AsyncConnectionPool

_HAS_STORE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'store'"
_SQLITE_NOTES = "SELECT key, value FROM store WHERE prefix = ? ORDER BY key"
_POSTGRES_HAS_STORE: LiteralString = "SELECT to_regclass('store') IS NOT NULL AS found"
_POSTGRES_NOTES: LiteralString = "SELECT key, value FROM store WHERE prefix = %s ORDER BY key"
_FORGET_SQLITE_NOTE = "DELETE FROM store WHERE prefix = ? AND key = ?"
_FORGET_POSTGRES_NOTES: LiteralString = "DELETE FROM store WHERE prefix = %s AND key = ANY(%s)"


def sqlite_notes(connection: sqlite3.Connection, session_id: str) -> list[ControlMessage]:
    """Return the notes to a session, in the order of sending; empty if the file has no Store. Blocks.

    Raises `sqlite3.Error` if the file cannot be read.
    """
    if connection.execute(_HAS_STORE).fetchone() is None:
        return []
    return _notes(connection.execute(_SQLITE_NOTES, (_prefix(session_id),)).fetchall())


async def postgres_notes(
    pool: AsyncConnectionPool[AsyncConnection[dict[str, Any]]], session_id: str
) -> list[ControlMessage]:
    """Return the notes to a session, in the order of sending; empty if the database has no table of the Store.

    Raises `psycopg.Error` if the database cannot be read.
    """
    async with pool.connection() as connection:
        found = await (await connection.execute(_POSTGRES_HAS_STORE)).fetchone()
        if found is None or not found["found"]:
            return []
        rows = await (await connection.execute(_POSTGRES_NOTES, [_prefix(session_id)])).fetchall()
    return _notes((row["key"], row["value"]) for row in rows)


def forget_sqlite_notes(connection: sqlite3.Connection, session_id: str, keys: Iterable[str]) -> None:
    """Remove notes to a session by their keys, without a commit; unknown keys are ignored.

    Blocks. Raises `sqlite3.Error`.
    """
    prefix = _prefix(session_id)
    connection.executemany(_FORGET_SQLITE_NOTE, [(prefix, key) for key in keys])


async def forget_postgres_notes(
    pool: AsyncConnectionPool[AsyncConnection[dict[str, Any]]], session_id: str, keys: Iterable[str]
) -> None:
    """Remove notes to a session by their keys in one statement; unknown keys are ignored. Raises `psycopg.Error`."""
    async with pool.connection() as connection:
        await connection.execute(_FORGET_POSTGRES_NOTES, [_prefix(session_id), [*keys]])


def _prefix(session_id: str) -> str:
    """Return the text that the Store's table has for the namespace of a session's notes."""
    return ".".join(inbox_namespace(session_id))


def _notes(rows: Iterable[tuple[str, Any]]) -> list[ControlMessage]:
    """Convert rows of key and value to notes, in the order of the rows.

    A value is a dict, or JSON text in SQLite. Values of another form, and dicts that are no note, are left out. Raises
    `ValueError` for a text that is no JSON.
    """
    values = ((key, json.loads(value) if isinstance(value, str | bytes) else value) for key, value in rows)
    notes = (note_from(key, value) for key, value in values if isinstance(value, dict))
    return [note for note in notes if note is not None]
