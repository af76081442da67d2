"""Lists a database's sessions through an index; the time of one page does not depend on the number of sessions."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

from graph_agent.storage.checkpoints.sqlite_connection import BUSY_S

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg_pool import AsyncConnectionPool

    Pool = AsyncConnectionPool[AsyncConnection[dict[str, Any]]]

_ROOT: LiteralString = "parent_checkpoint_id IS NULL AND checkpoint_ns = ''"
"""Condition of the first checkpoint of a thread."""
_SQLITE_GROUP: LiteralString = "substr(thread_id, 1, instr(thread_id, '/'))"
_POSTGRES_GROUP: LiteralString = "left(thread_id, strpos(thread_id, '/'))"
_COLUMNS: LiteralString = "checkpoint_id, thread_id"

SQLITE_INDEX: LiteralString = (
    f"CREATE INDEX IF NOT EXISTS graph_agent_sessions ON checkpoints ({_SQLITE_GROUP}, {_COLUMNS}) WHERE {_ROOT}"
)
POSTGRES_INDEX: LiteralString = (
    "CREATE INDEX CONCURRENTLY IF NOT EXISTS graph_agent_sessions ON checkpoints "
    f"(({_POSTGRES_GROUP}), {_COLUMNS}) WHERE {_ROOT}"
)
_STARTED: LiteralString = (
    "SELECT min(checkpoint_id) AS started FROM checkpoints WHERE thread_id = :after AND checkpoint_ns = ''"
)


async def sqlite_threads(file: Path, group: str | None, after: str | None, limit: int | None) -> list[str]:
    """Return the ids of the threads in a file, read over a separate connection.

    Arguments, result and errors as for `postgres_threads`; `file` is the database.
    """
    return await asyncio.to_thread(_read_sqlite, file, group, after, limit)


def _read_sqlite(file: Path, group: str | None, after: str | None, limit: int | None) -> list[str]:
    with closing(sqlite3.connect(file, timeout=BUSY_S)) as connection:
        connection.execute("PRAGMA query_only = ON")
        started = None
        if after is not None:
            (started,) = connection.execute(_STARTED, {"after": after}).fetchone()
            if started is None:
                raise KeyError(after)
        query, values = _query(_SQLITE_GROUP, group, after, started, limit)
        return [thread for (thread,) in connection.execute(query, values)]


async def postgres_threads(pool: Pool, group: str | None, after: str | None, limit: int | None) -> list[str]:
    """Return at most `limit` ids of threads, newest first by their first checkpoint, those listed after `after`.

    With a `group`, only ids that are this text, up to their first slash, and one more segment; the empty text is for
    ids without a slash. Raises `KeyError` if the thread `after` does not exist.
    """
    async with pool.connection() as connection:
        started = None
        if after is not None:
            row = await (await connection.execute(_named(_STARTED), {"after": after})).fetchone()
            started = row["started"] if row else None
            if started is None:
                raise KeyError(after)
        query, values = _query(_POSTGRES_GROUP, group, after, started, limit)
        rows: Sequence[dict[str, Any]] = await (await connection.execute(_named(query), values)).fetchall()
        return [row["thread_id"] for row in rows]


def _query(
    expression: LiteralString, group: str | None, after: str | None, started: str | None, limit: int | None
) -> tuple[LiteralString, dict[str, Any]]:
    query: LiteralString = f"SELECT thread_id FROM checkpoints WHERE {_ROOT}"
    if group is not None:
        query += f" AND {expression} = :group AND thread_id NOT LIKE :deeper"
    if started is not None:
        # An imported copy of a session has the same checkpoint ids.
        query += " AND (checkpoint_id, thread_id) < (:started, :after)"
    query += " ORDER BY checkpoint_id DESC, thread_id DESC"
    if limit is not None:
        query += " LIMIT :limit"
    return query, {"group": group, "deeper": f"{group}%/%", "started": started, "after": after, "limit": limit}


def _named(query: LiteralString) -> LiteralString:
    """Convert SQLite's named parameters to psycopg's syntax."""
    for name in ("after", "group", "deeper", "started", "limit"):
        query = query.replace(f":{name}", f"%({name})s")
    return query


# The expression of LangGraph's `list` with this key as its filter, which then uses the index.
_SQLITE_ID: LiteralString = "json_extract(CAST(metadata AS TEXT), '$.graph_agent_input')"
_POSTGRES_ID: LiteralString = "(metadata ->> 'graph_agent_input')"

SQLITE_INPUT_INDEX: LiteralString = (
    f"CREATE INDEX IF NOT EXISTS graph_agent_inputs ON checkpoints (thread_id, {_SQLITE_ID}, checkpoint_id)"
    f" WHERE {_SQLITE_ID} IS NOT NULL"
)
POSTGRES_INPUT_INDEX: LiteralString = (
    "CREATE INDEX CONCURRENTLY IF NOT EXISTS graph_agent_inputs ON checkpoints"
    f" (thread_id, ({_POSTGRES_ID}), checkpoint_id) WHERE {_POSTGRES_ID} IS NOT NULL"
)
_NEWEST: LiteralString = (
    "SELECT checkpoint_ns, checkpoint_id FROM checkpoints"
    f" WHERE thread_id = %s AND {_POSTGRES_ID} = %s ORDER BY checkpoint_id DESC LIMIT 1"
)


async def postgres_input_checkpoint(pool: Pool, thread_id: str, input_id: str) -> tuple[str, str] | None:
    """Return namespace and id of the newest checkpoint of an input; None if it has no checkpoint."""
    async with pool.connection() as connection:
        row = await (await connection.execute(_NEWEST, [thread_id, input_id])).fetchone()
    return (row["checkpoint_ns"], row["checkpoint_id"]) if row is not None else None
