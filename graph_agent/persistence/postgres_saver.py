"""LangGraph's saver in PostgreSQL, which refuses a run's writes after another run has continued its session."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, LiteralString, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
)
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from psycopg import AsyncClientCursor, AsyncConnection, AsyncPipeline
from psycopg.errors import DivisionByZero, InsufficientPrivilege, LockNotAvailable
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from graph_agent._compat import raise_checkpoint_id_floor
from graph_agent.persistence.session_index import postgres_threads
from graph_agent.persistence.write_probe import PROBE_BYTES
from graph_agent.runs.checkpoint_fence import OWNER, CheckpointFence, owner_in
from graph_agent.runs.run import fence_of

PAUSE_S = 10
"""Seconds a write waits for another writer of its thread; then it disconnects a stalled writer and waits again."""

# The lock is held until the transaction ends, so each write sees what the previous one of the thread has stored.
_LOCK: LiteralString = "SELECT set_config('lock_timeout', %s, true), pg_advisory_xact_lock(%s)"
_NEWEST: LiteralString = (
    "SELECT c.checkpoint_id, coalesce((SELECT w.channel FROM checkpoint_writes w WHERE w.thread_id = c.thread_id"
    " AND w.checkpoint_ns = c.checkpoint_ns AND w.checkpoint_id = c.checkpoint_id AND w.task_id = %s LIMIT 1), '')"
    " AS owner FROM checkpoints c WHERE c.thread_id = %s AND c.checkpoint_ns = %s"
    " ORDER BY c.checkpoint_id DESC LIMIT 1"
)
# Fails with a division by zero, which aborts the transaction, unless the newest checkpoint is one of the run's own.
_CHECK: LiteralString = (
    f"SELECT 1 / count(*) FROM ({_NEWEST}) AS newest WHERE checkpoint_id = ANY(%s) AND owner IN ('', %s)"
)
# One message with several statements, so a paused process cannot stop between them.
_BEGIN: LiteralString = f"BEGIN; {_LOCK}; {_NEWEST}"
_COUNT_WRITES: LiteralString = (
    "SELECT count(*) AS writes FROM checkpoint_writes"
    " WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s"
)
_PROBE: LiteralString = (
    "INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob)"
    " VALUES ('/ready', '', '', '', 0, '', '', %s)"
)
# The server does not limit the time between two messages of a pipeline, and a pipeline that ends with a Flush message,
# as psycopg's do, disables `idle_in_transaction_session_timeout`. The waiting writer therefore ends a stalled one.
_END_STALLED: LiteralString = (
    "SELECT pg_terminate_backend(a.pid, 5000) FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
    " WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND a.datname = current_database()"
    " AND l.database = a.datid AND (l.classid::bigint << 32 | l.objid::bigint) = %s"
    " AND a.wait_event_type = 'Client' AND a.state_change < clock_timestamp() - make_interval(secs => %s)"
)

T = TypeVar("T")

At = tuple[str, str]
"""A thread and a checkpoint namespace."""


class SharedPostgresSaver(AsyncPostgresSaver):
    """The saver; a run's write and the check that the run may write are one transaction.

    Args:
        pool: Connections in autocommit mode, with rows as mappings.
        serde: The serializer of checkpoints.
    """

    def __init__(self, pool: AsyncConnectionPool[AsyncConnection[DictRow]], serde: SerializerProtocol) -> None:
        super().__init__(pool, serde=serde)
        self._pool = pool

    async def aprobe(self) -> None:
        """Check that the database accepts writes, with a write that is rolled back.

        Raises:
            psycopg.Error: If it does not.
        """
        async with self._pool.connection() as connection, connection.transaction(force_rollback=True):
            await connection.execute(_PROBE, [os.urandom(PROBE_BYTES)])

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint; a run that resumes is recorded as its owner."""
        fence, at = fence_of(config), _at(config)
        if fence is None or fence.has_loaded(*at):
            found = await super().aget_tuple(config)
        elif get_checkpoint_id(config):
            # The run forks from an older checkpoint. The newest one is recorded to detect writes of another run.
            async with self._pool.connection() as connection:
                newest = await connection.execute(_NEWEST, [OWNER, *at])
                fence.load(*at, *_read(await newest.fetchone()), None)
            found = await super().aget_tuple(config)
        elif fence.claims:
            async with self._exclusive_transaction(at) as (connection, _, _):
                found = await AsyncPostgresSaver(connection, serde=self.serde).aget_tuple(config)
                if found is not None:
                    await self._record_owner(connection, at, found.checkpoint["id"], fence.owner)
            _record_loaded(fence, at, found)
        else:
            found = await super().aget_tuple(config)
            _record_loaded(fence, at, found)
        if found is not None:
            raise_checkpoint_id_floor(found.checkpoint["id"])
        return found

    async def list_threads(
        self, *, group: str | None = None, after: str | None = None, limit: int | None = None
    ) -> list[str]:
        """Return the ids of the threads (see `graph_agent.session.history.list_threads`)."""
        return await postgres_threads(self._pool, group, after, limit)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove old checkpoints of threads (see `graph_agent.persistence.prune`).

        Args:
            thread_ids: The threads.
            strategy: `keep_latest` or `delete`.

        Raises:
            SessionBusyError: If a run of a thread is under way.
        """
        # Imported here: few processes prune.
        from graph_agent.persistence.pruning.postgres import PostgresTables
        from graph_agent.persistence.pruning.threads import prune_to_newest

        await prune_to_newest(PostgresTables(self._pool), self, thread_ids, strategy)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint.

        Raises:
            SessionLostError: If a run writes it and another run has continued the session.
        """
        fence = fence_of(config)
        if fence is None:
            return await super().aput(config, checkpoint, metadata, new_versions)

        async def write(saver: AsyncPostgresSaver) -> RunnableConfig:
            return await saver.aput(config, checkpoint, metadata, new_versions)

        stored = await self._write(fence, _at(config), write, checkpoint["id"])
        fence.store(*_at(config), checkpoint["id"])
        return stored

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task.

        Raises:
            SessionLostError: If a run writes them and another run has continued the session.
        """
        fence = fence_of(config)
        if fence is None:
            await super().aput_writes(config, writes, task_id, task_path)
            return

        async def write(saver: AsyncPostgresSaver) -> None:
            await saver.aput_writes(config, writes, task_id, task_path)

        await self._write(fence, _at(config), write)

    async def _write(
        self,
        fence: CheckpointFence,
        at: At,
        write: Callable[[AsyncPostgresSaver], Awaitable[T]],
        new_id: str | None = None,
    ) -> T:
        """Check that the run may write, and write, in one transaction.

        Args:
            fence: The run's fence.
            at: The thread and namespace to write to.
            write: Writes with the given saver; called again if the first transaction failed.
            new_id: The id of the checkpoint to store; None for writes of an existing checkpoint.

        Raises:
            SessionLostError: If another run has continued the session.
        """
        if own := fence.own_newest(*at, new_id):
            try:
                async with self._pool.connection() as connection, _in_one_pipeline(connection, self.serde) as saver:
                    await connection.execute(_LOCK, [f"{PAUSE_S}s", _key(at)])
                    await connection.execute(_CHECK, [OWNER, *at, own, fence.owner])
                    return await write(saver)
            except LockNotAvailable:
                async with self._pool.connection() as connection:
                    await _end_stalled(connection, at)
            except DivisionByZero:
                pass  # `admit` decides
        async with self._exclusive_transaction(at) as (connection, newest, owner):
            if fence.admit(*at, newest, owner, new_id) and newest is not None:
                counted = await (await connection.execute(_COUNT_WRITES, [*at, newest])).fetchone()
                fence.check_untouched(*at, counted["writes"] if counted else 0)
                await self._record_owner(connection, at, newest, fence.owner)
            async with _in_one_pipeline(connection, self.serde) as saver:
                return await write(saver)

    @asynccontextmanager
    async def _exclusive_transaction(self, at: At) -> AsyncIterator[tuple[AsyncConnection[DictRow], str | None, str]]:
        """Open a transaction that excludes other writers of the same namespace.

        Yields:
            The connection, the id of the newest checkpoint, and the run that is recorded as its owner.
        """
        async with self._pool.connection() as connection:
            try:
                found = await _begin(connection, at)
            except LockNotAvailable:
                await connection.rollback()
                await _end_stalled(connection, at)
                found = await _begin(connection, at)
            # The pool commits the transaction, or rolls it back after an exception.
            yield connection, *_read(found)

    async def _record_owner(self, connection: AsyncConnection[DictRow], at: At, checkpoint_id: str, owner: str) -> None:
        row = (*at, checkpoint_id, OWNER, "", 0, owner, *self.serde.dumps_typed(None))
        await connection.execute(self.UPSERT_CHECKPOINT_WRITES_SQL, row)


class _NoSync:
    """Stand-in for a pipeline whose `sync` does nothing, so that the whole pipeline is one transaction."""

    async def sync(self) -> None:
        """Do nothing."""


@asynccontextmanager
async def _in_one_pipeline(
    connection: AsyncConnection[DictRow], serde: SerializerProtocol
) -> AsyncIterator[AsyncPostgresSaver]:
    """Yield a saver whose statements are sent together; their errors are raised on exit."""
    async with connection.pipeline():
        yield AsyncPostgresSaver(connection, cast("AsyncPipeline", _NoSync()), serde)


async def _begin(connection: AsyncConnection[DictRow], at: At) -> DictRow | None:
    """Begin a transaction, wait for other writers, and read the newest checkpoint."""
    # Parameters are inserted on the client, as the server accepts none with several statements.
    cursor = AsyncClientCursor(connection, row_factory=dict_row)
    await cursor.execute(_BEGIN, [f"{PAUSE_S}s", _key(at), OWNER, *at])
    while cursor.nextset():
        pass
    return await cursor.fetchone()


async def _end_stalled(connection: AsyncConnection[DictRow], at: At) -> None:
    """End the connection of another writer whose client stalled during a write."""
    with suppress(InsufficientPrivilege):  # the connection belongs to another role
        await connection.execute(_END_STALLED, [_key(at), PAUSE_S])


def _key(at: At) -> int:
    digest = hashlib.sha256("\0".join(at).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _read(found: DictRow | None) -> tuple[str | None, str]:
    return (found["checkpoint_id"], found["owner"]) if found is not None else (None, "")


def _record_loaded(fence: CheckpointFence, at: At, found: CheckpointTuple | None) -> None:
    pending = found.pending_writes or [] if found is not None else []
    fence.load(*at, found.checkpoint["id"] if found is not None else None, owner_in(pending), len(pending))


def _at(config: RunnableConfig) -> At:
    at = config["configurable"]
    return str(at["thread_id"]), at.get("checkpoint_ns", "")
