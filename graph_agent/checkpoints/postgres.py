"""Opens the saver and the Store in PostgreSQL; needs the extra `postgres`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from langgraph.store.base import Op, PutOp, Result

from graph_agent._compat import stop_batching
from graph_agent._internal.extras import missing_extra
from graph_agent._internal.sync_bridge import await_uninterrupted
from graph_agent.checkpoints.session_index import POSTGRES_INDEX, POSTGRES_INPUT_INDEX
from graph_agent.checkpoints.urls import redact_passwords, without_password
from graph_agent.checkpoints.write_probe import PROBE_BYTES
from graph_agent.errors import ConfigError

try:
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from langgraph.store.postgres.aio import AsyncPostgresStore
    from psycopg import AsyncConnection, Error
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.rows import DictRow, dict_row
    from psycopg_pool import AsyncConnectionPool

    from graph_agent.checkpoints.postgres_saver import SharedPostgresSaver
    from graph_agent.locks.postgres import is_readable
except ImportError as missing:
    raise missing_extra("A database in PostgreSQL", "postgres", missing) from None

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol

SAVER_CONNECTIONS, STORE_CONNECTIONS = 8, 4
"""Maximum connections of one process for the saver, and for the Store."""
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
"""Key of the advisory lock that is held while tables are created."""
_CREATE_S = 60
"""Seconds without a query after which the server ends the connection that holds `_CREATE_LOCK`: the process is
paused."""
_LIMIT_PAUSES = (
    "SELECT set_config(name, %s, false) FROM pg_settings"
    " WHERE name IN ('idle_session_timeout', 'idle_in_transaction_session_timeout')"
)
_INVALID = (
    "SELECT format('REINDEX INDEX CONCURRENTLY %I.%I', current_schema(), i.relname) AS repair FROM pg_index x"
    " JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid"
    " WHERE NOT x.indisvalid AND t.relnamespace = current_schema()::regnamespace"
    " AND t.relname IN ('checkpoints', 'checkpoint_blobs', 'checkpoint_writes', 'store')"
)
"""The statements that repair the indexes whose concurrent creation was killed; no query uses such an index."""
_READ_COMMITTED = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED"
_PAUSE_S = 0.05
"""Seconds between two attempts to acquire `_CREATE_LOCK`."""
_PROBE = "INSERT INTO store (prefix, key, value) VALUES ('/ready', '', %s::jsonb)"
_UNDER = "SELECT 1 FROM store WHERE prefix = %s LIMIT 1"

Pool = AsyncConnectionPool[AsyncConnection[DictRow]]


@asynccontextmanager
async def open_postgres_saver(url: str, serde: SerializerProtocol) -> AsyncIterator[SharedPostgresSaver]:
    """Open a saver, create its tables if they are missing, and close it on exit.

    Args:
        url: `postgresql://…`, in libpq's syntax.

    Raises:
        ConfigError: If the database cannot be reached, or its tables cannot be created.
    """

    async def make(connection: AsyncConnection[DictRow]) -> None:
        await AsyncPostgresSaver(connection, serde=serde).setup()
        await connection.execute(POSTGRES_INDEX)
        await connection.execute(POSTGRES_INPUT_INDEX)

    await make_tables(url, make)
    async with _pool(url, SAVER_CONNECTIONS) as pool:
        saver = SharedPostgresSaver(pool, serde)
        try:
            yield saver
        finally:
            await saver.aclose()


@asynccontextmanager
async def open_postgres_store(url: str) -> AsyncIterator[SharedPostgresStore]:
    """Open the Store of a database, create its tables if they are missing, and close it on exit.

    Raises:
        ConfigError: Same as for `open_postgres_saver`.
    """
    await make_tables(url, lambda connection: AsyncPostgresStore(connection).setup())
    async with _pool(url, STORE_CONNECTIONS) as pool:
        store = SharedPostgresStore(pool)
        try:
            yield store
        finally:
            await stop_batching(store)


class SharedPostgresStore(AsyncPostgresStore):
    """The Store; cancellation does not interrupt its operations, and it accepts text with NUL characters."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self._pool = pool

    async def is_empty(self, namespace: tuple[str, ...]) -> bool:
        """Whether a namespace itself holds no items; one query, cheaper than a search. The caller shields it.

        Args:
            namespace: The complete namespace, not a prefix.
        """
        async with self._pool.connection() as connection:
            return await (await connection.execute(_UNDER, [".".join(namespace)])).fetchone() is None

    async def aprobe(self) -> None:
        """Check that the database accepts writes, with a write that is rolled back.

        Raises:
            psycopg.Error: If it does not.
        """
        async with self._pool.connection() as connection, connection.transaction(force_rollback=True):
            await connection.execute(_PROBE, ['"' + os.urandom(PROBE_BYTES // 2).hex() + '"'])

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations as one batch; a cancellation takes effect after the batch."""
        return await await_uninterrupted(super().abatch([_storable(op) for op in ops]))


async def make_tables(url: str, make: Callable[[AsyncConnection[DictRow]], Awaitable[Any]]) -> None:
    """Create tables under a lock, since concurrent creation by two processes would fail.

    Raises:
        ConfigError: If the database cannot be reached, or the tables cannot be created.
    """
    try:
        async with await AsyncConnection[DictRow].connect(url, row_factory=dict_row, **_options(url)) as connection:
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


@asynccontextmanager
async def _pool(url: str, size: int) -> AsyncIterator[Pool]:
    async def check(connection: AsyncConnection[DictRow]) -> None:
        try:
            await _check_connection(connection)
        except Error:
            # After a restart of the database, every idle connection is dead. The pool waits 1, 2, 4, … seconds after
            # each dead one that a caller meets, so the others are replaced now.
            await pool.check()
            raise

    async def configure(connection: AsyncConnection[DictRow]) -> None:
        # The fence of a run relies on it (see `READS_COMMITTED`).
        await connection.execute(_READ_COMMITTED)

    pool: Pool = AsyncConnectionPool(
        url,
        connection_class=AsyncConnection[DictRow],
        kwargs={**_options(url), "row_factory": dict_row},
        min_size=1,
        max_size=size,
        open=False,
        configure=configure,
        check=check,
    )
    async with pool:
        yield pool


async def _check_connection(connection: AsyncConnection[DictRow]) -> None:
    """Check a pooled connection before use; a dead one, e.g. after a database restart, is replaced.

    A server that ends a connection sends data, so a query is needed only if there is data to read.
    """
    if connection.closed or is_readable(connection.fileno(), 0):
        await Pool.check_connection(connection)


def _options(url: str) -> dict[str, Any]:
    """Return the options of a connection, except those that the URL sets.

    Raises:
        psycopg.ProgrammingError: If the URL is invalid.
    """
    chosen = conninfo_to_dict(url)
    limits = {name: value for name, value in _LIMITS.items() if name not in chosen}
    return {"autocommit": True, "prepare_threshold": 0, **limits}


def _storable(op: Op) -> Op:
    """Replace NUL characters, which PostgreSQL cannot store, in an operation's value."""
    if isinstance(op, PutOp) and op.value is not None:
        return op._replace(value=_without_nul(op.value))
    return op


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\x00", "\ufffd")
    if isinstance(value, list):
        return [_without_nul(item) for item in value]
    if isinstance(value, dict):
        return {_without_nul(key): _without_nul(item) for key, item in value.items()}
    return value
