"""Reads and prunes the tables of LangGraph's savers in a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, LiteralString

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres.base import PRUNE_DELETE_THREADS_SQL
from langgraph.checkpoint.serde.base import SerializerProtocol
from psycopg import AsyncConnection
from psycopg.rows import DictRow, tuple_row
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool

from graph_agent.storage.checkpoints.fenced_writes import At, Statement
from graph_agent.storage.checkpoints.postgres_fence import PostgresRecorder
from graph_agent.storage.checkpoints.pruning import tables
from graph_agent.storage.checkpoints.pruning.plan import Row, Rows

_NAMES = {
    "{writes}": "checkpoint_writes",
    "{value}": "blob",
    "{json}": "?::jsonb",
    "{list}": "(SELECT unnest(?::text[]))",
}
"""Placeholder of the shared SQL → what PostgreSQL has in its place."""
_ROWS = (
    "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint ->> 'ts', metadata,"
    " ARRAY(SELECT jsonb_object_keys(coalesce(checkpoint -> 'channel_values', '{}'))),"
    " jsonb_exists(checkpoint -> 'channel_versions', 'loop'),"
    " octet_length(checkpoint::text) + octet_length(metadata::text) FROM checkpoints WHERE thread_id = ?"
)
_DELETE_ITEMS = "DELETE FROM store WHERE prefix = ?"
_ADD_ITEM = "INSERT INTO store (prefix, key, value) VALUES (?, ?, ?)"
_IN = "thread_id = ? AND checkpoint_ns = ?"
# New checkpoints refer to the blobs of remaining ones, or to blobs of their own transaction.
_UNUSED = (
    f"{_IN} AND (channel, version) NOT IN (SELECT v.key, v.value FROM checkpoints,"
    f" LATERAL jsonb_each_text(checkpoint -> 'channel_versions') v WHERE {_IN} AND checkpoint_id NOT IN {{list}})"
)
_COUNT_UNUSED = f"SELECT coalesce(sum(octet_length(blob)), 0) FROM checkpoint_blobs WHERE {_UNUSED}"
_DELETE_UNUSED = f"DELETE FROM checkpoint_blobs WHERE {_UNUSED}"
_TABLES: LiteralString = "checkpoints, checkpoint_writes, checkpoint_blobs"
_SIZE = (
    "SELECT coalesce(sum(pg_total_relation_size(to_regclass(name))), 0)::bigint"
    " FROM unnest(ARRAY['checkpoints', 'checkpoint_writes', 'checkpoint_blobs']) AS name"
)


class PostgresTables(tables.Tables):
    """The tables in one PostgreSQL database; the connections of `pool` are in autocommit mode.

    The methods raise `psycopg.Error` if the database cannot be used, and `psycopg_pool.PoolTimeout` without a
    connection.
    """

    def __init__(self, pool: AsyncConnectionPool[AsyncConnection[DictRow]]) -> None:
        self._pool = pool

    async def load(self, thread_id: str) -> dict[str, Rows]:
        """Return namespace → checkpoint id → checkpoint of a thread, all read at one moment; empty for an unknown
        thread.

        Raises `UnreadableCheckpointError` if a newer version of this package stored a checkpoint.
        """
        async with self._pool.connection() as connection, connection.transaction():
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            cursor = connection.cursor(row_factory=tuple_row)
            rows, writes = [
                await (await cursor.execute(_sql(sql), [thread_id])).fetchall()
                for sql in (_ROWS, tables.WRITES_BY_CHANNEL)
            ]
        written = tables.written_of(writes)
        return tables.by_namespace(
            [
                (
                    namespace,
                    Row(
                        id=id_,
                        parent=parent or None,
                        ts=ts or "",
                        metadata=metadata,
                        values=frozenset(values),
                        deltas=tables.known_deltas(metadata, is_agents=bool(is_agents)),
                        size=size,
                        writes=written.get((namespace, id_), {}),
                    ),
                )
                for namespace, id_, parent, ts, metadata, values, is_agents, size in rows
            ]
        )

    async def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query with placeholders; `values` are its parameters in order, a list for each
        `{list}`.
        """
        async with self._pool.connection() as connection, connection.cursor(row_factory=tuple_row) as cursor:
            found = await (await cursor.execute(_sql(sql), values)).fetchall()
        return [tuple(bytes(each) if isinstance(each, memoryview) else each for each in row) for row in found]

    async def apply(
        self,
        statements: Sequence[Statement],
        confirm: tables.Confirm = tables.no_check,
        expected: tables.ThreadState | None = None,
    ) -> None:
        """Execute statements in one transaction, and call `confirm` before the commit; rolled back if anything fails.

        Raises what `confirm` raises, and `ThreadChangedError` if a thread is not in the `expected` state; None is no
        condition.
        """
        async with (
            self._pool.connection() as connection,
            connection.transaction(),
            connection.cursor(row_factory=tuple_row) as cursor,
        ):
            if expected is not None:
                found = await (await cursor.execute(_sql(tables.EXTENT), [expected.id])).fetchone()
                if found != (expected.newest, expected.number):
                    raise tables.ThreadChangedError
            for sql, rows in statements:
                await cursor.executemany(_sql(sql), rows)
            # At the end: the lock that excludes runs belongs to another connection, which may break during the
            # statements.
            await confirm()

    def cleaning(self, at: At) -> list[Statement]:
        """Return the statement that removes the values of a namespace that no checkpoint refers to."""
        return [(_DELETE_UNUSED, [(*at, *at, [])])]

    async def unused_bytes(self, at: At, gone: Sequence[str]) -> int:
        """Return the bytes that `cleaning` would remove once the checkpoints with the ids `gone` are removed."""
        [(size,)] = await self.query(_COUNT_UNUSED, [*at, *at, [*gone]])
        return int(size)

    def recorder(self, serde: SerializerProtocol) -> tuple[BaseCheckpointSaver[Any], list[Statement]]:
        """Return a saver that stores nothing, and the list to which its blocking writes append their statements."""
        recorder = PostgresRecorder(serde)
        return recorder, recorder.statements

    async def replace(
        self, thread_id: str, statements: Sequence[Statement], prefix: str, items: Sequence[tuple[str, Any]]
    ) -> None:
        """Delete a thread and the items of a namespace of the Store (`prefix`, joined by points), and store new ones.

        `statements` store the new checkpoints and writes, `items` are keys and JSON values. All is one transaction.
        """
        deletions = [(sql, [([thread_id],)]) for sql in PRUNE_DELETE_THREADS_SQL]
        added = [(prefix, key, Jsonb(value)) for key, value in items]
        await self.apply([*deletions, (_DELETE_ITEMS, [(prefix,)]), *statements, (_ADD_ITEM, added)])

    async def size(self) -> int:
        """Return the bytes of the tables of checkpoints and their indexes; the Store is not counted."""
        [(size,)] = await self.query(_SIZE)
        return int(size)

    async def reclaim(self, is_idle: Callable[[], Awaitable[bool]]) -> None:
        """Vacuum the tables: the space of removed rows becomes reusable, and free space at the end is returned. No run
        is blocked.

        `is_idle` is not called.
        """
        async with self._pool.connection() as connection:
            await connection.execute(f"VACUUM {_TABLES}")


def _sql(sql: str) -> bytes:
    """Replace the placeholders of the shared SQL, such as `{writes}` and `?`, by what psycopg expects; encode it as
    UTF-8.
    """
    # LangGraph's own statements have psycopg's parameters already.
    for name, own in {**_NAMES, "?": "%s"}.items():
        sql = sql.replace(name, own)
    return sql.encode()
