"""Listing a database's sessions by an index: a page takes the same time whatever the number of sessions."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

from graph_agent.persistence.sqlite_connection import BUSY_S

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg_pool import AsyncConnectionPool

    Pool = AsyncConnectionPool[AsyncConnection[dict[str, Any]]]

_ROOT: LiteralString = "parent_checkpoint_id IS NULL AND checkpoint_ns = ''"
"""Holds for the first checkpoint of a thread."""
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
_BEGUN: LiteralString = (
    "SELECT min(checkpoint_id) AS begun FROM checkpoints WHERE thread_id = :after AND checkpoint_ns = ''"
)


async def sqlite_threads(file: Path, group: str | None, after: str | None, limit: int | None) -> list[str]:
    """The ids of the threads in a file, read over a connection of its own.

    Arguments, result and errors as for `postgres_threads`; `file` is the database.
    """
    return await asyncio.to_thread(_read_sqlite, file, group, after, limit)


def _read_sqlite(file: Path, group: str | None, after: str | None, limit: int | None) -> list[str]:
    with closing(sqlite3.connect(file, timeout=BUSY_S)) as connection:
        connection.execute("PRAGMA query_only = ON")
        begun = None
        if after is not None:
            (begun,) = connection.execute(_BEGUN, {"after": after}).fetchone()
            if begun is None:
                raise KeyError(after)
        query, values = _query(_SQLITE_GROUP, group, begun, limit)
        return [thread for (thread,) in connection.execute(query, values)]


async def postgres_threads(pool: Pool, group: str | None, after: str | None, limit: int | None) -> list[str]:
    """The ids of the threads in a database, the one begun last first.

    Args:
        pool: Connections to the database.
        group: Only threads whose id is this text and one part more: it ends with the id's first slash, or is empty for
            ids without a slash. None for all threads.
        after: Only threads behind this one; None to begin with the first.
        limit: Threads at most; None for all.

    Raises:
        KeyError: If there is no thread `after`.
    """
    async with pool.connection() as connection:
        begun = None
        if after is not None:
            row = await (await connection.execute(_named(_BEGUN), {"after": after})).fetchone()
            begun = row["begun"] if row else None
            if begun is None:
                raise KeyError(after)
        query, values = _query(_POSTGRES_GROUP, group, begun, limit)
        rows: Sequence[dict[str, Any]] = await (await connection.execute(_named(query), values)).fetchall()
        return [row["thread_id"] for row in rows]


def _query(
    expression: LiteralString, group: str | None, begun: str | None, limit: int | None
) -> tuple[LiteralString, dict[str, Any]]:
    query: LiteralString = f"SELECT thread_id FROM checkpoints WHERE {_ROOT}"
    if group is not None:
        query += f" AND {expression} = :group AND thread_id NOT LIKE :deeper"
    if begun is not None:
        query += " AND checkpoint_id < :begun"
    query += " ORDER BY checkpoint_id DESC"
    if limit is not None:
        query += " LIMIT :limit"
    return query, {"group": group, "deeper": f"{group}%/%", "begun": begun, "limit": limit}


def _named(query: LiteralString) -> LiteralString:
    """SQLite's named parameters as psycopg has them."""
    for name in ("after", "group", "deeper", "begun", "limit"):
        query = query.replace(f":{name}", f"%({name})s")
    return query
