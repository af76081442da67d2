"""Creates tables in a PostgreSQL database, and sets the options of connections; needs the extra `postgres`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from psycopg import AsyncConnection, Error
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import DictRow, dict_row

from graph_agent.base.database_urls import redact_passwords, without_password
from graph_agent.base.errors import ConfigError

CONNECT_S = 10
"""Seconds to wait for a connection, unless the URL sets `connect_timeout`."""

_LIMITS = {
    "connect_timeout": CONNECT_S,
    # A run that loses the database fails after seconds, not after the system default of about 15 minutes.
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
}
"""Default connection options, unless the URL sets them: seconds, but milliseconds for `tcp_user_timeout`."""

_CREATE_LOCK = 0x6772617068
"""Key of PostgreSQL's advisory lock that a process holds while it creates tables."""
_CREATE_S = 60
"""Seconds without a query after which the server ends a connection that creates tables, because its process is
paused."""
_LIMIT_PAUSES = (
    "SELECT set_config(name, %s, false) FROM pg_settings"
    " WHERE name IN ('idle_session_timeout', 'idle_in_transaction_session_timeout')"
)
"""Statement by which the server ends a connection that sends nothing for a time.

Old servers lack one of the settings.
"""
_INVALID = (
    "SELECT format('REINDEX INDEX CONCURRENTLY %I.%I', current_schema(), i.relname) AS repair FROM pg_index x"
    " JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid"
    " WHERE NOT x.indisvalid AND t.relnamespace = current_schema()::regnamespace"
    " AND t.relname IN ('checkpoints', 'checkpoint_blobs', 'checkpoint_writes', 'store')"
)
"""Query for the statements that repair indexes whose concurrent creation was killed; no query uses such an index."""
_PAUSE_S = 0.05
"""Seconds between two attempts to acquire `_CREATE_LOCK`."""


def connection_options(url: str) -> dict[str, Any]:
    """Return keyword arguments of `psycopg`'s connections: autocommit, prepared statements, time limits and keepalives.

    Time limits and keepalives that the URL sets are left out.

    Raises:
        psycopg.ProgrammingError: The URL is not in libpq's syntax.
    """
    chosen = conninfo_to_dict(url)
    limits = {name: value for name, value in _LIMITS.items() if name not in chosen}
    return {"autocommit": True, "prepare_threshold": 0, **limits}


async def make_tables(url: str, make: Callable[[AsyncConnection[DictRow]], Awaitable[Any]]) -> None:
    """Call `make` with a new connection to create tables, while no other process creates any, and repair broken
    indexes. Waits as long as another process does so, because concurrent creation would fail.

    Args:
        url: The database's URL.
        make: Creates the tables, if they do not exist.

    Raises:
        ConfigError: The database cannot be reached or refuses a statement; the text has the URL without its password.
    """
    try:
        async with await AsyncConnection[DictRow].connect(
            url, row_factory=dict_row, **connection_options(url)
        ) as connection:
            # A paused process would otherwise keep the lock forever.
            await connection.execute(_LIMIT_PAUSES, [f"{_CREATE_S}s"])
            # Polled: CREATE INDEX CONCURRENTLY would wait for sessions that wait for the lock in the server.
            query, key = "SELECT pg_try_advisory_lock(%s) AS acquired", [_CREATE_LOCK]
            while (row := await (await connection.execute(query, key)).fetchone()) and not row["acquired"]:  # noqa: ASYNC110 - no event: another process holds it
                await asyncio.sleep(_PAUSE_S)
            await make(connection)
            for row in await (await connection.execute(_INVALID)).fetchall():
                await connection.execute(row["repair"])
    except Error as error:
        reason = redact_passwords(url, " ".join(str(error).split()))
        raise ConfigError(f"db={without_password(url)!r}: the database cannot be used: {reason}") from None
