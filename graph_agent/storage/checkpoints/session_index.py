"""Lists a database's sessions through an index; the time of one page does not depend on the number of sessions.

A session is one LangGraph thread, and is listed by its first checkpoint. A group is the part of its id up to the first
slash, slash included; an id without a slash is in the group of the empty text. A second index finds the checkpoints of
an input by the id that its sender gave it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

from graph_agent.base.sqlite_connection import BUSY_S

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg_pool import AsyncConnectionPool

    Pool = AsyncConnectionPool[AsyncConnection[dict[str, Any]]]

_ROOT: LiteralString = "parent_checkpoint_id IS NULL AND checkpoint_ns = ''"
"""Condition of the first checkpoint of a thread."""
_SQLITE_GROUP: LiteralString = "substr(thread_id, 1, instr(thread_id, '/'))"
"""SQL expression of a thread's group."""
_POSTGRES_GROUP: LiteralString = "left(thread_id, strpos(thread_id, '/'))"
"""SQL expression of a thread's group."""
_COLUMNS: LiteralString = "checkpoint_id, thread_id"

SQLITE_INDEX: LiteralString = (
    f"CREATE INDEX IF NOT EXISTS graph_agent_sessions ON checkpoints ({_SQLITE_GROUP}, {_COLUMNS}) WHERE {_ROOT}"
)
"""Statement that creates the index of sessions in SQLite."""
POSTGRES_INDEX: LiteralString = (
    "CREATE INDEX CONCURRENTLY IF NOT EXISTS graph_agent_sessions ON checkpoints "
    f"(({_POSTGRES_GROUP}), {_COLUMNS}) WHERE {_ROOT}"
)
"""Statement that creates the index of sessions in PostgreSQL, outside a transaction."""
_STARTED: LiteralString = (
    "SELECT min(checkpoint_id) AS started FROM checkpoints WHERE thread_id = :after AND checkpoint_ns = ''"
)


async def sqlite_threads(file: Path, group: str | None, after: str | None, limit: int | None) -> list[str]:
    """Return ids of threads in an SQLite file, newest first by their first checkpoint; read in a thread, not in the
    event loop.

    Args:
        file: The database, which must have its tables. It is read over a separate connection, so that only committed
            threads are listed.
        group: Text that the ids must begin with, up to and with their first slash, followed by one more segment without
            a slash. The empty text lists the ids without a slash. None lists all.
        after: Id of the thread after which the list begins; None for the beginning.
        limit: Maximum number of ids; None for no limit.

    Raises:
        KeyError: If the thread `after` does not exist.
        sqlite3.Error: If the file cannot be read.
    """
    return await asyncio.to_thread(_read_sqlite, file, group, after, limit)


def _read_sqlite(file: Path, group: str | None, after: str | None, limit: int | None) -> list[str]:
    """Read the ids of threads, newest first by their first checkpoint, over a connection that only reads; blocking.

    Args:
        file: The database, which must have its tables.
        group: Beginning of the ids, up to and with their only slash; empty for ids without a slash, None for all ids.
        after: Id of the thread after which the list begins; None for the beginning.
        limit: Maximum number of ids; None for no limit.

    Raises:
        KeyError: The thread `after` does not exist.
        sqlite3.Error: The file cannot be read.
    """
    with closing(sqlite3.connect(file, timeout=BUSY_S)) as connection:
        connection.execute("PRAGMA query_only = ON")
        started = None
        if after is not None:
            # By the first checkpoint of the last listed thread, not by an offset: sessions that begin between two pages
            # do not shift the second one.
            (started,) = connection.execute(_STARTED, {"after": after}).fetchone()
            if started is None:
                raise KeyError(after)
        query, values = _query(_SQLITE_GROUP, group, after, started, limit)
        return [thread for (thread,) in connection.execute(query, values)]


async def postgres_threads(pool: Pool, group: str | None, after: str | None, limit: int | None) -> list[str]:
    """Return ids of threads in PostgreSQL, newest first by their first checkpoint.

    Args:
        pool: Connections to the database, with rows as mappings.
        group: Beginning of the ids, up to and including their first slash; one segment without a further slash must
            follow it. Empty for ids without a slash, None for all ids.
        after: Id of the thread after which the list begins; None for the beginning.
        limit: Maximum number of ids; None for no limit.

    Raises:
        KeyError: If the thread `after` does not exist.
        psycopg.Error: If the query fails.
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
    """Return the query of a page of threads, newest first, and its named parameters, in SQLite's syntax.

    Args:
        expression: The SQL of a thread's group.
        group: The group of the threads, of which only those without a further slash are selected; None for all threads.
        after: The thread after which the page begins; None for the first page.
        started: Id of the first checkpoint of the thread `after`; None for the first page.
        limit: Maximum number of threads; None for no limit.
    """
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
    """Convert SQLite's named parameters (`:limit`) to psycopg's syntax (`%(limit)s`)."""
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
"""Statement that creates the index of inputs in SQLite."""
POSTGRES_INPUT_INDEX: LiteralString = (
    "CREATE INDEX CONCURRENTLY IF NOT EXISTS graph_agent_inputs ON checkpoints"
    f" (thread_id, ({_POSTGRES_ID}), checkpoint_id) WHERE {_POSTGRES_ID} IS NOT NULL"
)
"""Statement that creates the index of inputs in PostgreSQL, outside a transaction."""
_NEWEST: LiteralString = (
    "SELECT checkpoint_ns, checkpoint_id FROM checkpoints"
    f" WHERE thread_id = %s AND {_POSTGRES_ID} = %s ORDER BY checkpoint_id DESC LIMIT 1"
)


async def postgres_input_checkpoint(pool: Pool, thread_id: str, input_id: str) -> tuple[str, str] | None:
    """Return namespace and id of the newest checkpoint of an input in a thread, of any namespace; None if it has
    none.
    """
    async with pool.connection() as connection:
        row = await (await connection.execute(_NEWEST, [thread_id, input_id])).fetchone()
    return (row["checkpoint_ns"], row["checkpoint_id"]) if row is not None else None
