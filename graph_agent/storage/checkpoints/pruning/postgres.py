"""Reads and prunes the tables of LangGraph's savers in a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, LiteralString

from langgraph.checkpoint.base import BaseCheckpointSaver, DeltaChannelHistory
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.postgres.base import PRUNE_DELETE_THREADS_SQL
from langgraph.checkpoint.serde.base import SerializerProtocol
from psycopg import AsyncConnection
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool

from graph_agent.base.input_ids import INPUT_ID
from graph_agent.storage.checkpoints.format import FORMAT_KEY, JOINED
from graph_agent.storage.checkpoints.postgres_fence import Recorder
from graph_agent.storage.checkpoints.pruning.histories import OpaqueSerializer
from graph_agent.storage.checkpoints.pruning.plan import MARK, At, Copies, Mark, Node, ThreadState, config_at
from graph_agent.storage.checkpoints.pruning.tables import (
    LEFTOVER,
    METADATA,
    Batch,
    Confirm,
    Row,
    Statement,
    StoredWrite,
    ThreadChangedError,
    no_check,
    nodes_of,
)

UNCLEANED = ""
"""Channel of the note that a namespace may hold values that no checkpoint refers to."""
_IN: LiteralString = "thread_id = %s AND checkpoint_ns = %s"
_AT: LiteralString = f"{_IN} AND checkpoint_id = %s"
_THREADS: LiteralString = (
    "SELECT c.thread_id, c.newest, c.number, w.blob FROM (SELECT thread_id, max(checkpoint_id) AS newest,"
    " count(*) AS number FROM checkpoints GROUP BY thread_id) c LEFT JOIN checkpoint_writes w"
    f" ON w.thread_id = c.thread_id AND w.checkpoint_ns = '' AND w.checkpoint_id = ''"
    f" AND w.task_id = '{MARK}' AND w.idx = 0"
)
_MARK: LiteralString = (
    "INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob)"
    f" VALUES (%s, '', '', '{MARK}', 0, '{MARK}', 'json', %s)"
    " ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO UPDATE SET blob = EXCLUDED.blob"
)
_ROWS: LiteralString = (
    "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint ->> 'ts' AS ts,"
    " coalesce((checkpoint ->> 'v')::int, 1) AS v,"
    " ARRAY(SELECT jsonb_object_keys(checkpoint -> 'channel_versions')) AS versions,"
    " ARRAY(SELECT jsonb_object_keys(coalesce(checkpoint -> 'channel_values', '{}'))) AS inline,"
    " metadata -> 'counters_since_delta_snapshot' AS counters_since_delta_snapshot, metadata -> 'parents' AS parents,"
    f" metadata ->> 'source' AS source, metadata ->> '{INPUT_ID}' AS {INPUT_ID},"
    f" (metadata ->> '{FORMAT_KEY}')::int AS {FORMAT_KEY}, metadata -> '{JOINED}' AS {JOINED},"
    " octet_length(checkpoint::text) + octet_length(metadata::text) AS size"
    " FROM checkpoints WHERE thread_id = %s"
)
_WRITES: LiteralString = (
    "SELECT checkpoint_ns, checkpoint_id, channel, count(*) AS number, sum(octet_length(blob)) AS size"
    " FROM checkpoint_writes WHERE thread_id = %s GROUP BY checkpoint_ns, checkpoint_id, channel"
)
_STORED_WRITES: LiteralString = (
    "SELECT checkpoint_ns AS namespace, checkpoint_id, task_id, task_path, channel, type, blob AS value"
    " FROM checkpoint_writes WHERE thread_id = %s ORDER BY checkpoint_ns, checkpoint_id, task_id, idx"
)
_WRITES_OF: LiteralString = (
    "SELECT checkpoint_ns AS namespace, checkpoint_id, task_id, task_path, channel, type, blob AS value"
    f" FROM checkpoint_writes WHERE {_IN} AND checkpoint_id = ANY(%s) AND channel = ANY(%s)"
    " ORDER BY task_path, task_id, idx"
)
_INPUTS: LiteralString = (
    "SELECT c.checkpoint_ns, c.checkpoint_id FROM checkpoints c JOIN checkpoint_blobs b ON b.thread_id = c.thread_id"
    " AND b.checkpoint_ns = c.checkpoint_ns AND b.channel = '__start__'"
    " AND b.version = c.checkpoint -> 'channel_versions' ->> '__start__' AND b.type <> 'empty'"
    " WHERE c.thread_id = %s AND c.parent_checkpoint_id IS NULL"
)
_VERSIONS: LiteralString = f"SELECT checkpoint -> 'channel_versions' AS versions FROM checkpoints WHERE {_AT}"
_ADD_BLOB: LiteralString = (
    "INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)"
    " VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (thread_id, checkpoint_ns, channel, version)"
    " DO UPDATE SET type = EXCLUDED.type, blob = EXCLUDED.blob WHERE checkpoint_blobs.type = 'empty'"
)
_MARK_VALUES: LiteralString = (
    "UPDATE checkpoints SET checkpoint = jsonb_set(checkpoint, '{channel_values}',"
    f" coalesce(checkpoint -> 'channel_values', '{{}}') || %s) WHERE {_AT}"
)
_NEWER: LiteralString = f"SELECT parent_checkpoint_id AS parent FROM checkpoints WHERE {_IN} AND checkpoint_id > %s"
_DELETE: tuple[LiteralString, ...] = (
    f"DELETE FROM checkpoint_writes WHERE {_IN} AND checkpoint_id = ANY(%s)",
    f"DELETE FROM checkpoints WHERE {_IN} AND checkpoint_id = ANY(%s)",
)
_DELETE_ITEMS: LiteralString = "DELETE FROM store WHERE prefix = %s"
_ADD_ITEM: LiteralString = "INSERT INTO store (prefix, key, value) VALUES (%s, %s, %s)"
_DELETE_NOTES: LiteralString = f"DELETE FROM checkpoint_writes WHERE {_AT} AND task_id = %s"
_NOTE: LiteralString = (
    "INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob)"
    " SELECT %s, %s, '', %s, number, id, 'null', '' FROM unnest(%s::text[]) WITH ORDINALITY AS noted (id, number)"
)
_JOIN: LiteralString = (
    "INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob)"
    f" VALUES (%s, %s, %s, '{JOINED}', %s, %s, %s, %s)"
)
_MARK_JOINED: LiteralString = (
    f"UPDATE checkpoints SET metadata = (metadata - '{INPUT_ID}') || '{{\"{JOINED}\": true}}' WHERE {_AT}"
)
_DELETE_UNCLEANED: LiteralString = f"{_DELETE_NOTES} AND channel = %s"
_UNCLEANED: LiteralString = (
    "SELECT checkpoint_ns FROM checkpoint_writes WHERE thread_id = %s AND checkpoint_id = '' AND task_id = %s"
    " AND channel = %s"
)
_SET_PARENTS: LiteralString = (
    "UPDATE checkpoints c SET parent_checkpoint_id = changed.parent FROM unnest(%s::text[], %s::text[])"
    " AS changed (id, parent) WHERE c.thread_id = %s AND c.checkpoint_ns = %s AND c.checkpoint_id = changed.id"
)
# New checkpoints refer to the blobs of remaining ones, or to blobs of their own transaction.
_UNUSED: LiteralString = (
    f"WITH used AS (SELECT DISTINCT v.key, v.value FROM checkpoints,"
    f" LATERAL jsonb_each_text(checkpoint -> 'channel_versions') v WHERE {_IN} AND NOT (checkpoint_id = ANY(%s)))"
)
_COUNT_UNUSED: LiteralString = (
    f"{_UNUSED} SELECT coalesce(sum(octet_length(blob)), 0) AS size FROM checkpoint_blobs WHERE {_IN}"
    " AND (channel, version) NOT IN (SELECT key, value FROM used)"
)
_DELETE_UNUSED: LiteralString = (
    f"{_UNUSED}, gone AS (DELETE FROM checkpoint_blobs WHERE {_IN}"
    " AND (channel, version) NOT IN (SELECT key, value FROM used) RETURNING octet_length(blob) AS size)"
    " SELECT coalesce(sum(size), 0) AS size FROM gone"
)
_TABLES: LiteralString = "checkpoints, checkpoint_writes, checkpoint_blobs"
_SIZE: LiteralString = (
    "SELECT sum(pg_total_relation_size(to_regclass(name)))::bigint AS size"
    " FROM unnest(ARRAY['checkpoints', 'checkpoint_writes', 'checkpoint_blobs']) AS name"
)


class PostgresTables:
    """The tables in one database; the pool's connections are in autocommit mode, with rows as mappings."""

    def __init__(self, pool: AsyncConnectionPool[AsyncConnection[DictRow]]) -> None:
        self._pool = pool

    async def threads(self) -> list[ThreadState]:
        """Return all threads, by one query."""
        return [ThreadState(*row.values()) for row in await self._query(_THREADS, [])]

    async def mark(self, marks: Mapping[str, Mark]) -> None:
        """Store the marks of threads, in one transaction."""
        await self.store([(_MARK, [(id_, mark.to_json()) for id_, mark in marks.items()])])

    async def load(self, thread_id: str) -> dict[str, list[Node]]:
        """Return the checkpoints of a thread by namespace."""
        async with self._pool.connection() as connection, connection.transaction():
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            found = [await (await connection.execute(sql, [thread_id])).fetchall() for sql in (_ROWS, _WRITES, _INPUTS)]
        rows, writes, inputs = found
        written: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
        for row in writes:
            at = row["checkpoint_ns"], row["checkpoint_id"]
            written.setdefault(at, {})[row["channel"]] = row["number"], int(row["size"])
        started = {(row["checkpoint_ns"], row["checkpoint_id"]) for row in inputs}
        return nodes_of((_row(row, started) for row in rows), written)

    async def stored_writes(self, thread_id: str) -> list[StoredWrite]:
        """Return all writes of a thread; those of one task are in their order."""
        rows = await self._query(_STORED_WRITES, [thread_id])
        return [StoredWrite(**{**row, "value": bytes(row["value"])}) for row in rows]

    async def writes_of(self, at: At, ids: Sequence[str], channels: Sequence[str]) -> list[StoredWrite]:
        """Return the writes of checkpoints to delta channels; those of one checkpoint are in LangGraph's order."""
        rows = await self._query(_WRITES_OF, [*at, [*ids], [*channels]])
        return [StoredWrite(**{**row, "value": bytes(row["value"])}) for row in rows]

    async def opaque_history(
        self, at: At, checkpoint_id: str, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the history of delta channels, with objects as they are stored."""
        saver = AsyncPostgresSaver(self._pool, serde=OpaqueSerializer())
        return await saver.aget_delta_channel_history(config=config_at(at, checkpoint_id), channels=channels)

    def recorder(self, serde: SerializerProtocol) -> tuple[BaseCheckpointSaver[Any], list[Statement]]:
        """Return a saver that stores nothing, and the list of statements that its blocking writes add to."""
        recorder = Recorder(serde)
        return recorder, recorder.statements

    async def replace(
        self, thread_id: str, statements: Sequence[Statement], prefix: str, items: Sequence[tuple[str, Any]]
    ) -> None:
        """Delete a thread and its items in the Store, and store new ones, in one transaction."""
        async with self._pool.connection() as connection, connection.transaction(), connection.cursor() as cursor:
            for sql in PRUNE_DELETE_THREADS_SQL:
                await cursor.execute(sql.encode(), [[thread_id]])
            await cursor.execute(_DELETE_ITEMS, [prefix])
            for statement, rows in statements:
                await cursor.executemany(statement.encode(), rows)
            await cursor.executemany(_ADD_ITEM, [(prefix, key, Jsonb(value)) for key, value in items])

    async def store(self, statements: Sequence[Statement], confirm: Confirm = no_check) -> None:
        """Execute statements of a recorder, in one transaction."""
        async with self._pool.connection() as connection, connection.transaction(), connection.cursor() as cursor:
            for statement, rows in statements:
                await cursor.executemany(statement.encode(), rows)
            await confirm()

    async def add_copies(
        self, at: At, checkpoint_id: str, copies: Copies, *, dry_run: bool, confirm: Confirm = no_check
    ) -> int:
        """Add full copies of channels to a checkpoint; return the bytes by which it grows."""
        if not dry_run:
            async with self._pool.connection() as connection, connection.transaction():
                found = await (await connection.execute(_VERSIONS, [*at, checkpoint_id])).fetchone()
                versions = found["versions"] if found is not None else {}
                for channel, stored in copies.items():
                    await connection.execute(_ADD_BLOB, [*at, channel, versions[channel], *stored])
                await connection.execute(_MARK_VALUES, [Jsonb(dict.fromkeys(copies, True)), *at, checkpoint_id])
                await confirm()
        return sum(len(stored) for _, stored in copies.values())

    async def remove(self, at: At, batch: Batch, newest: str, doomed: set[str], confirm: Confirm = no_check) -> None:
        """Remove checkpoints and their writes, and replace the writes of `batch.joined`, in one transaction."""
        async with self._pool.connection() as connection, connection.transaction():
            newer = await (await connection.execute(_NEWER, [*at, newest])).fetchall()
            if any(row["parent"] in doomed for row in newer):
                raise ThreadChangedError
            for sql in _DELETE:
                await connection.execute(sql, [*at, list(batch.ids)])
            if (head := batch.joined) is not None:
                await connection.execute(_DELETE[0], [*at, [head.id]])
                async with connection.cursor() as cursor:
                    rows = [(*at, head.id, number, *row) for number, row in enumerate(head.writes)]
                    await cursor.executemany(_JOIN, rows)
                await connection.execute(_MARK_JOINED, [*at, head.id])
            await connection.execute(_SET_PARENTS, [list(batch.parents), list(batch.parents.values()), *at])
            await connection.execute(_DELETE_NOTES, [*at, "", LEFTOVER])
            await connection.execute(_NOTE, [*at, LEFTOVER, [*batch.leftovers, UNCLEANED]])
            await confirm()

    async def clean(self, at: At, gone: set[str], *, dry_run: bool) -> int:
        """Remove the stored values that no remaining checkpoint refers to; return their bytes."""
        async with self._pool.connection() as connection, connection.transaction():
            unused = await connection.execute(_COUNT_UNUSED if dry_run else _DELETE_UNUSED, [*at, list(gone), *at])
            [row] = await unused.fetchall()
            if not dry_run:
                await connection.execute(_DELETE_UNCLEANED, [*at, "", LEFTOVER, UNCLEANED])
        return int(row["size"])

    async def uncleaned(self, thread_id: str) -> list[str]:
        """Return the namespaces of a thread that a pruning left without `clean`."""
        return [row["checkpoint_ns"] for row in await self._query(_UNCLEANED, [thread_id, LEFTOVER, UNCLEANED])]

    async def size(self) -> int:
        """Return the bytes of the tables and their indexes."""
        [row] = await self._query(_SIZE, [])
        return row["size"] or 0

    async def reclaim(self, is_idle: Callable[[], Awaitable[bool]]) -> None:
        """Make the space of removed rows reusable, and return free space at the end of the tables."""
        async with self._pool.connection() as connection:
            await connection.execute(f"VACUUM {_TABLES}")

    async def _query(self, sql: LiteralString, values: list[Any]) -> list[DictRow]:
        async with self._pool.connection() as connection:
            return await (await connection.execute(sql, values)).fetchall()


def _row(stored: DictRow, started: set[tuple[str, str]]) -> Row:
    namespace, id_ = stored["checkpoint_ns"], stored["checkpoint_id"]
    values = {*stored["inline"], *(["__start__"] if (namespace, id_) in started else [])}
    return Row(
        namespace=namespace,
        id=id_,
        parent=stored["parent_checkpoint_id"],
        ts=stored["ts"] or "",
        version=stored["v"],
        versions=frozenset(stored["versions"]),
        values=frozenset(values),
        metadata={key: stored[key] for key in METADATA},
        size=stored["size"],
    )
