"""Implements and opens the saver and the Store in PostgreSQL; needs the extra `postgres`.

Importing the module raises `ImportError` without the extra. Opening is refused with `ConfigError` if the database
cannot be used.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import groupby
from typing import Any, Literal, LiteralString

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.store.base import Op, PutOp, Result

from graph_agent.base._compat.release import stop_batching
from graph_agent.base._internal.extras import missing_extra
from graph_agent.base._internal.sync_bridge import await_uninterrupted
from graph_agent.base.inbox import ControlMessage
from graph_agent.core.state.fence import CheckpointFence, DeferredWrites
from graph_agent.core.state.own_checkpoint import deferred_of, fence_of
from graph_agent.storage.checkpoints import session_index
from graph_agent.storage.checkpoints.fenced_writes import at_of
from graph_agent.storage.checkpoints.note_rows import forget_postgres_notes, postgres_notes
from graph_agent.storage.checkpoints.write_probe import PROBE_BYTES

try:
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from langgraph.store.postgres.aio import AsyncPostgresStore
    from langgraph.store.postgres.base import PostgresIndexConfig
    from psycopg import AsyncConnection, Error
    from psycopg.rows import DictRow, dict_row
    from psycopg_pool import AsyncConnectionPool

    from graph_agent.base.postgres_tables import connection_options, make_tables
    from graph_agent.core.state.postgres_query import is_readable
    from graph_agent.storage.checkpoints.postgres_fence import (
        FencedPostgresSaver,
        FencedWrite,
        PostgresRecorder,
        Share,
        SharedTransactions,
        WriteQueue,
        execute,
    )
except ImportError as missing:
    raise missing_extra("A database in PostgreSQL", "postgres", missing) from None

SAVER_CONNECTIONS, STORE_CONNECTIONS = 8, 4
"""Maximum connections of one process for the saver, and for the Store."""
_READ_COMMITTED = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED"
"""Sets the isolation level on which the check of a write relies (see `READS_COMMITTED`)."""
_STORE_PROBE = "INSERT INTO store (prefix, key, value) VALUES ('/ready', '', %s::jsonb)"
"""The write of `SharedPostgresStore.aprobe`."""
_UNDER = "SELECT 1 FROM store WHERE prefix = %s LIMIT 1"
"""Whether a namespace of the Store has an item."""

Pool = AsyncConnectionPool[AsyncConnection[DictRow]]


@asynccontextmanager
async def open_postgres_saver(url: str, serde: SerializerProtocol) -> AsyncIterator[SharedPostgresSaver]:
    """Open the saver of a database, and close it on exit after its queued writes are committed.

    Missing tables and indexes are created first. `url` is `postgresql://…`; `serde` converts the stored values. Raises
    `ConfigError` if the database cannot be reached or used, and `psycopg_pool.PoolTimeout` later if a connection is not
    available.
    """

    async def make(connection: AsyncConnection[DictRow]) -> None:
        """Create LangGraph's tables and the indexes of this package."""
        await AsyncPostgresSaver(connection, serde=serde).setup()
        await connection.execute(session_index.POSTGRES_INDEX)
        await connection.execute(session_index.POSTGRES_INPUT_INDEX)

    await make_tables(url, make)
    async with open_pool(url, SAVER_CONNECTIONS) as pool:
        saver = SharedPostgresSaver(pool, serde)
        try:
            yield saver
        finally:
            await saver.aclose()


@asynccontextmanager
async def open_postgres_store(url: str) -> AsyncIterator[SharedPostgresStore]:
    """Open the Store of a database, and close it on exit after its queued operations have ended.

    Missing tables are created first. `url` is `postgresql://…`. Raises `ConfigError` if the database cannot be reached
    or used.
    """
    await make_tables(url, lambda connection: AsyncPostgresStore(connection).setup())
    async with open_pool(url, STORE_CONNECTIONS) as pool:
        store = SharedPostgresStore(pool)
        try:
            yield store
        finally:
            await stop_batching(store)


class SharedPostgresStore(AsyncPostgresStore):
    """LangGraph's Store over a pool of connections.

    Cancellation does not interrupt its operations, and it accepts text with NUL characters, which it replaces by
    U+FFFD.
    """

    def __init__(self, pool: Pool, *, index: PostgresIndexConfig | None = None) -> None:
        super().__init__(pool, index=index)
        self._pool = pool

    async def is_empty(self, namespace: tuple[str, ...]) -> bool:
        """Whether a namespace has no items; items of longer namespaces do not count. One query, cheaper than a search.

        A cancellation interrupts the query, so callers that share the connection shield it.
        """
        async with self._pool.connection() as connection:
            return await (await connection.execute(_UNDER, [".".join(namespace)])).fetchone() is None

    async def aprobe(self) -> None:
        """Check with a write that is rolled back that the database accepts writes; raise `psycopg.Error` if not."""
        async with self._pool.connection() as connection, connection.transaction(force_rollback=True):
            # Random, since the database compresses large values, and a compressible probe would not fill a page.
            await connection.execute(_STORE_PROBE, ['"' + os.urandom(PROBE_BYTES // 2).hex() + '"'])

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations as one batch, and return their results in order; a cancellation takes effect after the
        batch.
        """
        return await await_uninterrupted(super().abatch([_storable(op) for op in ops]))


@asynccontextmanager
async def open_pool(url: str, size: int) -> AsyncIterator[Pool]:
    """Open a pool of 1 to `size` connections, which are checked before each use, and close it on exit."""

    async def check(connection: AsyncConnection[DictRow]) -> None:
        """Check a connection before its use.

        If it is dead, also check all idle connections of the pool, and raise `psycopg.Error`.
        """
        try:
            await _check_connection(connection)
        except Error:
            # After a restart of the database, every idle connection is dead. The pool waits 1, 2, 4, … seconds after
            # each dead one that a caller meets, so the others are replaced now.
            await pool.check()
            raise

    async def configure(connection: AsyncConnection[DictRow]) -> None:
        """Set the isolation level of a new connection."""
        # The fence of a run relies on it (see `READS_COMMITTED`).
        await connection.execute(_READ_COMMITTED)

    pool: Pool = AsyncConnectionPool(
        url,
        connection_class=AsyncConnection[DictRow],
        kwargs={**connection_options(url), "row_factory": dict_row},
        min_size=1,
        max_size=size,
        open=False,
        configure=configure,
        check=check,
    )
    async with pool:
        yield pool


async def _check_connection(connection: AsyncConnection[DictRow]) -> None:
    """Check a pooled connection before use; raise `psycopg.Error` if it is dead, so that the pool replaces it.

    A connection in pipeline mode is closed, and counts as dead. A query is sent only if there is data to read, because
    a server that ends a connection sends data.
    """
    if connection.pgconn.pipeline_status:
        # A cancelled transaction has left the mode on, in which several statements at once are an error.
        await connection.close()
    if connection.closed or is_readable(connection.fileno(), 0):
        await Pool.check_connection(connection)


def _storable(op: Op) -> Op:
    """Return an operation with the NUL characters in its value replaced, since PostgreSQL cannot store them."""
    if isinstance(op, PutOp) and op.value is not None:
        return op._replace(value=_without_nul(op.value))
    return op


def _without_nul(value: Any) -> Any:
    """Return a value with each NUL character in its texts, keys included, replaced by U+FFFD."""
    if isinstance(value, str):
        return value.replace("\x00", "\ufffd")
    if isinstance(value, list):
        return [_without_nul(item) for item in value]
    if isinstance(value, dict):
        return {_without_nul(key): _without_nul(item) for key, item in value.items()}
    return value


_PROBE: LiteralString = (
    "INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob)"
    " VALUES ('/ready', '', '', '', 0, '', '', %s)"
)
"""The write of `SharedPostgresSaver.aprobe`."""


class _NoLock(asyncio.Lock):
    """A lock that any number of tasks hold at the same time."""

    async def acquire(self) -> Literal[True]:
        """Return True at once."""
        return True

    def release(self) -> None:
        """Do nothing."""


class SharedPostgresSaver(FencedPostgresSaver):
    """LangGraph's saver over a pool of connections, in which a run's writes and the check that the run may write are
    one transaction.

    A run that defers its writes (`DeferredWrites`) commits several supersteps together, and shares transactions with
    other runs. A read first waits for the queued writes of its thread. A queued write that fails is raised by the run's
    next write or flush. The connections of the pool are in autocommit mode, with rows as mappings; `serde` converts the
    stored values.
    """

    defers_writes = True
    """See `graph_agent.core.state.fence.SupportsDeferral`."""

    def __init__(self, pool: AsyncConnectionPool[AsyncConnection[DictRow]], serde: SerializerProtocol) -> None:
        super().__init__(pool, serde=serde)
        # The lock of the base class admits one reader at a time, as readers could share a connection. With a pool, each
        # has its own.
        self.lock = _NoLock()
        self._pool = pool
        self._queues: dict[DeferredWrites, WriteQueue] = {}
        self._shared = SharedTransactions(self._pipeline)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint, by default the newest, after the queued writes of its thread; None if it does not exist.

        The first read of a run records its base, and a run that resumes as the owner (see
        `FencedPostgresSaver.aget_tuple`).
        """
        await self._flush(at_of(config)[0])
        return await super().aget_tuple(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, newest first, after the queued writes of their threads.

        Args:
            config: The thread, and optionally the namespace and the checkpoint; None for all threads.
            filter: Entries that the metadata must have; None for no condition.
            before: Config of the checkpoint before which to list; None for no condition.
            limit: Maximum number of checkpoints; None for no limit.
        """
        await self._flush(at_of(config)[0] if config is not None else None)
        async for found in super().alist(config, filter=filter, before=before, limit=limit):
            yield found

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the last full copy of each delta channel and the writes after it, as LangGraph's saver does.

        The queued writes of the thread are committed first. A delta channel stores only what each step wrote.
        """
        await self._flush(at_of(config)[0])
        return await super().aget_delta_channel_history(config=config, channels=channels)

    async def aput(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: dict[str, Any]
    ) -> RunnableConfig:
        """Store a checkpoint, and return its config.

        If the run defers its writes, the checkpoint is queued, and the call returns before the commit, unless
        `DeferredWrites.waits` requires to wait for it. Otherwise the queued writes of the thread are committed first,
        then the checkpoint is stored. Raises `SessionLostError` if the run has lost the session to another run, or the
        error of an earlier deferred write of the run.
        """
        deferred = self._deferred(config)
        if deferred is None:
            await self._flush(at_of(config)[0])
            return await super().aput(config, checkpoint, metadata, new_versions)
        recorder = PostgresRecorder(self.serde)
        stored = recorder.put(config, checkpoint, metadata, new_versions)
        self._queue(config, deferred, recorder, checkpoint["id"])
        if deferred.waits(metadata.get("source")):
            await deferred.flush()
        return stored

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task to the checkpoint in `config`.

        If the run defers its writes, they are queued for commit with a later checkpoint, and the call returns at once.
        Otherwise the queued writes of the thread are committed first. Raises `SessionLostError` if the run has lost the
        session to another run, or the error of an earlier deferred write of the run.
        """
        deferred = self._deferred(config)
        if deferred is None:
            await self._flush(at_of(config)[0])
            await super().aput_writes(config, writes, task_id, task_path)
            return
        recorder = PostgresRecorder(self.serde)
        recorder.put_writes(config, writes, task_id, task_path)
        # The superstep's checkpoint follows and is committed with them.
        self._queue(config, deferred, recorder)

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints and writes of a thread, after its queued writes; nothing happens if it does not
        exist.
        """
        await self._flush(thread_id)
        await super().adelete_thread(thread_id)

    def _deferred(self, config: RunnableConfig) -> DeferredWrites | None:
        """Return the queued writes of the run in a config.

        Returns None if the write must not be queued: the run does not defer its writes, or it runs on another event
        loop than that of the saver.
        """
        deferred = deferred_of(config)
        return deferred if deferred is not None and deferred.loop is self.loop else None

    def _queue(
        self, config: RunnableConfig, deferred: DeferredWrites, recorded: PostgresRecorder, new_id: str | None = None
    ) -> None:
        """Queue the recorded statements of a write; `new_id` is the id of a new checkpoint, None for a task's writes.

        Raises the error of an earlier write of the run.
        """
        queue = self._queues.get(deferred)
        if queue is None:
            fence = fence_of(config)
            assert fence is not None  # a run that defers its writes has one
            queue = WriteQueue(deferred, partial(self._commit, fence), partial(self._forget, deferred))
            self._queues[deferred] = queue
        queue.add(FencedWrite(*at_of(config), recorded.statements, new_id))

    def _forget(self, deferred: DeferredWrites) -> None:
        """Drop the queue of a run, which is empty."""
        del self._queues[deferred]

    async def _commit(self, fence: CheckpointFence, batch: Sequence[FencedWrite]) -> None:
        """Commit writes of a run in their order, with one transaction for consecutive writes to one namespace.

        Transactions are shared with other runs where possible. Raises `SessionLostError` if another run has continued
        the session; the earlier groups stay stored.
        """
        for at, group in groupby(batch, key=lambda write: (write.thread_id, write.namespace)):
            writes = [*group]
            new_ids = [one.new_id for one in writes if one.new_id is not None]
            own = fence.own_newest(*at, new_ids) if self.supports_pipeline else []
            if own and await self._shared.commit(Share((*at, own[0], own[1], fence.owner), writes)):
                for new_id in new_ids:
                    fence.store(*at, new_id)
                continue

            async def write(saver: FencedPostgresSaver, writes: Sequence[FencedWrite] = writes) -> None:
                """Execute the group's statements in the transaction of the given saver."""
                async with saver._cursor(pipeline=True) as cursor:
                    await execute(cursor, writes)

            await self._write(fence, at, write, new_ids)

    @asynccontextmanager
    async def _pipeline(self) -> AsyncIterator[AsyncConnection[DictRow]]:
        """Open a connection in pipeline mode, whose transaction is committed on exit."""
        async with self._connection() as connection, connection.pipeline():
            yield connection

    async def _flush(self, thread_id: str | None = None) -> None:
        """Wait until the queued writes of a thread, or of all threads (None), have ended.

        Returns at once on another event loop than the saver's, since only that one has queued writes.
        """
        if asyncio.get_running_loop() is not self.loop:
            return
        for queue in [*self._queues.values()]:
            if thread_id is None or thread_id in queue.threads:
                await queue.flush()

    async def aclose(self) -> None:
        """Wait until all queued writes are committed or have failed; the pool stays open."""
        await self._flush()

    async def aprobe(self) -> None:
        """Check with a write that is rolled back that the database accepts writes; raise `psycopg.Error` if not."""
        async with self._pool.connection() as connection, connection.transaction(force_rollback=True):
            await connection.execute(_PROBE, [os.urandom(PROBE_BYTES)])

    async def list_threads(
        self, *, group: str | None = None, after: str | None = None, limit: int | None = None
    ) -> list[str]:
        """Return ids of threads, newest first by their first checkpoint.

        Args:
            group: Text that the ids must begin with, up to and with their first slash, followed by one more segment;
                empty for ids without a slash, None for all.
            after: Id of the thread after which the list begins; None for the beginning. `KeyError` if it does not
                exist.
            limit: Maximum number of ids; None for no limit.
        """
        return await session_index.postgres_threads(self._pool, group, after, limit)

    async def stored_notes(self, thread_id: str) -> list[ControlMessage]:
        """Return the notes to a session in the Store of the database, in the order of sending; empty without a
        Store.
        """
        return await postgres_notes(self._pool, thread_id)

    async def forget_notes(self, thread_id: str, keys: Collection[str]) -> None:
        """Remove notes to a session by their keys; unknown keys are ignored. The database must have a Store."""
        await forget_postgres_notes(self._pool, thread_id, keys)

    @property
    def address(self) -> str:
        """The URL of the database, with its password."""
        return str(self._pool.conninfo)

    async def find_input(self, thread_id: str, input_id: str) -> CheckpointTuple | None:
        """Return the newest checkpoint of the input with an id that its sender gave it, in any namespace; None if there
        is none.

        The queued writes of the thread are committed first.
        """
        await self._flush(thread_id)
        newest = await session_index.postgres_input_checkpoint(self._pool, thread_id, input_id)
        if newest is None:
            return None
        return await self.aget_tuple(
            {"configurable": {"thread_id": thread_id, "checkpoint_ns": newest[0], "checkpoint_id": newest[1]}}
        )

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove old checkpoints of threads; unknown threads are ignored.

        The strategy `keep_latest` trims each thread to its first and newest checkpoint (see
        `graph_agent.persistence.prune`), `delete` removes it. Raises `SessionBusyError` if a thread was skipped, e.g.
        because a run of it is in progress; the threads after it are not pruned. Raises `ValueError` for another
        strategy, and `TypeError` if `thread_ids` is a single text.
        """
        # Imported here: few processes prune.
        from graph_agent.storage.checkpoints.pruning.postgres import PostgresTables
        from graph_agent.storage.checkpoints.pruning.sessions import prune_to_newest

        await prune_to_newest(PostgresTables(self._pool), self, thread_ids, strategy)
