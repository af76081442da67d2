"""Sessions and LangGraph's Store in PostgreSQL; needs the extra `postgres`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from langgraph.store.base import Op, PutOp, Result

from graph_agent.blocking import to_its_end
from graph_agent.db_urls import without_password, without_passwords_of
from graph_agent.errors import ConfigError
from graph_agent.session_index import POSTGRES_INDEX
from graph_agent.write_probe import PROBE_BYTES

try:
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from langgraph.store.postgres.aio import AsyncPostgresStore
    from psycopg import AsyncConnection, Error
    from psycopg.rows import DictRow, dict_row
    from psycopg_pool import AsyncConnectionPool

    from graph_agent.postgres_query import is_readable
    from graph_agent.postgres_saver import SharedPostgresSaver
except ImportError as missing:
    raise ConfigError(
        f"A database in PostgreSQL needs an extra ({missing.name or missing}): pip install 'graph-agent[postgres]'"
    ) from None

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol

SAVER_CONNECTIONS, STORE_CONNECTIONS = 8, 4
"""Connections that one process opens at most for its sessions, and for their Store."""
CONNECT_S = 10
"""Seconds to wait for a connection where the address sets no `connect_timeout`."""

_LIMITS = {
    "connect_timeout": CONNECT_S,
    # A run that is cut off from the database ends after seconds, not after the quarter of an hour that systems wait.
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
}
"""What a connection gets where the address does not set it: seconds, but milliseconds for `tcp_user_timeout`."""

_MAKING = 0x6772617068
"""Advisory lock of whoever makes tables."""
_PAUSE_S = 0.05
"""Seconds between two tries to be the one that makes tables."""
_PROBE = "INSERT INTO store (prefix, key, value) VALUES ('/ready', '', %s::jsonb)"
_UNDER = "SELECT 1 FROM store WHERE prefix = %s LIMIT 1"

Pool = AsyncConnectionPool[AsyncConnection[DictRow]]


@asynccontextmanager
async def open_postgres_saver(url: str, serde: SerializerProtocol) -> AsyncIterator[SharedPostgresSaver]:
    """Open a saver, its tables made where they are missing, and close it on leaving.

    Args:
        url: `postgresql://…`, as libpq has it.
        serde: What writes and reads checkpoints.

    Raises:
        ConfigError: When the database cannot be reached, or its tables cannot be made.
    """

    async def make(connection: AsyncConnection[DictRow]) -> None:
        await AsyncPostgresSaver(connection, serde=serde).setup()
        await connection.execute(POSTGRES_INDEX)

    await make_tables(url, make)
    async with _pool(url, SAVER_CONNECTIONS) as pool:
        yield SharedPostgresSaver(pool, serde)


@asynccontextmanager
async def open_postgres_store(url: str) -> AsyncIterator[SharedPostgresStore]:
    """Open the Store of a database, its tables made where they are missing, and close it on leaving.

    Raises:
        ConfigError: As `open_postgres_saver`.
    """
    await make_tables(url, lambda connection: AsyncPostgresStore(connection).setup())
    async with _pool(url, STORE_CONNECTIONS) as pool:
        yield SharedPostgresStore(pool)


class SharedPostgresStore(AsyncPostgresStore):
    """The store, whose operations are never cut in two, and which takes any text."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self._pool = pool

    async def is_empty(self, namespace: tuple[str, ...]) -> bool:
        """Whether a namespace itself holds nothing: one query, where a search counts what it reads.

        Args:
            namespace: The whole namespace, not the beginning of one.
        """
        return await to_its_end(self._has_none(".".join(namespace)))

    async def aprobe(self) -> None:
        """Find out whether the database takes writes, by one that is rolled back.

        Raises:
            psycopg.Error: When it does not.
        """
        async with self._pool.connection() as connection, connection.transaction(force_rollback=True):
            await connection.execute(_PROBE, ['"' + os.urandom(PROBE_BYTES // 2).hex() + '"'])

    async def _has_none(self, prefix: str) -> bool:
        async with self._pool.connection() as connection:
            return await (await connection.execute(_UNDER, [prefix])).fetchone() is None

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `AsyncPostgresStore.abatch`; a cancellation takes effect when the batch is done."""
        return await to_its_end(super().abatch([_storable(op) for op in ops]))


async def make_tables(url: str, make: Callable[[AsyncConnection[DictRow]], Awaitable[Any]]) -> None:
    """Make tables, one process at a time: two that make the same at once would fail.

    Args:
        url: The database.
        make: Makes them over a connection, unless they are there.

    Raises:
        ConfigError: When the database cannot be reached, or they cannot be made.
    """
    try:
        async with await AsyncConnection[DictRow].connect(url, row_factory=dict_row, **_options(url)) as connection:
            # Not by waiting in the server: an index made concurrently would wait for those who wait.
            query, key = "SELECT pg_try_advisory_lock(%s) AS had", [_MAKING]
            while (row := await (await connection.execute(query, key)).fetchone()) and not row["had"]:  # noqa: ASYNC110 - it is another process's
                await asyncio.sleep(_PAUSE_S)
            await make(connection)
    except Error as error:
        told = without_passwords_of(url, " ".join(str(error).split()))
        raise ConfigError(f"db={without_password(url)!r}: the database cannot be used: {told}") from None


@asynccontextmanager
async def _pool(url: str, size: int) -> AsyncIterator[Pool]:
    pool = AsyncConnectionPool(
        url,
        connection_class=AsyncConnection[DictRow],
        kwargs={**_options(url), "row_factory": dict_row},
        min_size=1,
        max_size=size,
        open=False,
        check=_check_connection,
    )
    async with pool:
        yield pool


async def _check_connection(connection: AsyncConnection[DictRow]) -> None:
    """Check a connection before the pool lends it: after a restart of the database, a dead one is replaced.

    A server that ends a connection sends something, so a query is needed only where there is something to read.
    """
    if connection.closed or is_readable(connection.fileno(), 0):
        await Pool.check_connection(connection)


def _options(url: str) -> dict[str, Any]:
    limits = {name: value for name, value in _LIMITS.items() if name not in url}
    return {"autocommit": True, "prepare_threshold": 0, **limits}


def _storable(op: Op) -> Op:
    """An operation whose value holds no NUL, which PostgreSQL has no place for."""
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
