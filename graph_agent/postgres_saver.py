"""LangGraph's saver in PostgreSQL, which refuses what a run writes once another run has continued its session."""

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

from graph_agent._compat import keep_checkpoint_ids_above
from graph_agent.checkpoint_fence import OWNER, CheckpointFence, owner_in
from graph_agent.runs import fence_of
from graph_agent.session_index import postgres_threads
from graph_agent.write_probe import PROBE_BYTES

PAUSE_S = 10
"""Seconds that a write waits for another writer of its thread; one that stalls is ended then, and the wait repeated."""

# Until its transaction ends, a write keeps others of the same thread waiting: each sees what the one before has stored.
_LOCK: LiteralString = "SELECT set_config('lock_timeout', %s, true), pg_advisory_xact_lock(%s)"
_NEWEST: LiteralString = (
    "SELECT c.checkpoint_id, coalesce((SELECT w.channel FROM checkpoint_writes w WHERE w.thread_id = c.thread_id"
    " AND w.checkpoint_ns = c.checkpoint_ns AND w.checkpoint_id = c.checkpoint_id AND w.task_id = %s LIMIT 1), '')"
    " AS owner FROM checkpoints c WHERE c.thread_id = %s AND c.checkpoint_ns = %s"
    " ORDER BY c.checkpoint_id DESC LIMIT 1"
)
# Fails with a division by zero, and the transaction with it, unless the newest checkpoint is one of the run's own.
_CHECK: LiteralString = (
    f"SELECT 1 / count(*) FROM ({_NEWEST}) AS newest WHERE checkpoint_id = ANY(%s) AND owner IN ('', %s)"
)
# One message of several statements: a process that is paused cannot stop in the middle of it.
_BEGIN: LiteralString = f"BEGIN; {_LOCK}; {_NEWEST}"
_COUNT_WRITES: LiteralString = (
    "SELECT count(*) AS writes FROM checkpoint_writes"
    " WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s"
)
_PROBE: LiteralString = (
    "INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob)"
    " VALUES ('/ready', '', '', '', 0, '', '', %s)"
)
# A server sets no limit to the time between two messages of a pipeline, and one that ends with a Flush message, as
# psycopg's do, turns `idle_in_transaction_session_timeout` off. So the writer that waits ends a stalled one.
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
        pool: Connections that commit each statement by itself, with rows as mappings.
        serde: Writes checkpoints, and reads them.
    """

    def __init__(self, pool: AsyncConnectionPool[AsyncConnection[DictRow]], serde: SerializerProtocol) -> None:
        super().__init__(pool, serde=serde)
        self._pool = pool

    async def aprobe(self) -> None:
        """Find out whether the database takes writes, by one that is rolled back.

        Raises:
            psycopg.Error: When it does not.
        """
        async with self._pool.connection() as connection, connection.transaction(force_rollback=True):
            await connection.execute(_PROBE, [os.urandom(PROBE_BYTES)])

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As `AsyncPostgresSaver.aget_tuple`; a run that resumes is noted as the owner of its checkpoint."""
        fence, at = fence_of(config), _at(config)
        if fence is None or fence.has_loaded(*at):
            found = await super().aget_tuple(config)
        elif get_checkpoint_id(config):
            # It goes back to an older one, and must not do so over the head of another run.
            async with self._pool.connection() as connection:
                newest = await connection.execute(_NEWEST, [OWNER, *at])
                fence.load(*at, *_read(await newest.fetchone()), None)
            found = await super().aget_tuple(config)
        elif fence.claims:
            async with self._one_by_one(at) as (connection, _, _):
                found = await AsyncPostgresSaver(connection, serde=self.serde).aget_tuple(config)
                if found is not None:
                    await self._note_owner(connection, at, found.checkpoint["id"], fence.owner)
            _note_loaded(fence, at, found)
        else:
            found = await super().aget_tuple(config)
            _note_loaded(fence, at, found)
        if found is not None:
            keep_checkpoint_ids_above(found.checkpoint["id"])
        return found

    async def list_threads(
        self, *, group: str | None = None, after: str | None = None, limit: int | None = None
    ) -> list[str]:
        """The ids of the threads (see `graph_agent.history.list_threads`)."""
        return await postgres_threads(self._pool, group, after, limit)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As `AsyncPostgresSaver.aput`.

        Raises:
            SessionLostError: When it is a run's, and another run has continued the session.
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
        """As `AsyncPostgresSaver.aput_writes`.

        Raises:
            SessionLostError: When they are a run's, and another run has continued the session.
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
        """Write in one transaction with the check that the run may write.

        Args:
            fence: The run's.
            at: Where it writes.
            write: Writes with the saver that it is given; called again where its first transaction failed.
            new_id: The id of the checkpoint to store; None for writes beside one that is there.

        Raises:
            SessionLostError: When another run has continued the session.
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
        async with self._one_by_one(at) as (connection, newest, owner):
            if fence.admit(*at, newest, owner, new_id) and newest is not None:
                counted = await (await connection.execute(_COUNT_WRITES, [*at, newest])).fetchone()
                fence.check_untouched(*at, counted["writes"] if counted else 0)
                await self._note_owner(connection, at, newest, fence.owner)
            async with _in_one_pipeline(connection, self.serde) as saver:
                return await write(saver)

    @asynccontextmanager
    async def _one_by_one(self, at: At) -> AsyncIterator[tuple[AsyncConnection[DictRow], str | None, str]]:
        """A transaction that no other writer of the same namespace is in at the same time.

        Yields:
            Its connection, the id of the newest checkpoint, and the run that is noted as its owner.
        """
        async with self._pool.connection() as connection:
            try:
                found = await _begin(connection, at)
            except LockNotAvailable:
                await connection.rollback()
                await _end_stalled(connection, at)
                found = await _begin(connection, at)
            # The pool ends the transaction: with a commit, or with a rollback after an exception.
            yield connection, *_read(found)

    async def _note_owner(self, connection: AsyncConnection[DictRow], at: At, checkpoint_id: str, owner: str) -> None:
        note = (*at, checkpoint_id, OWNER, "", 0, owner, *self.serde.dumps_typed(None))
        await connection.execute(self.UPSERT_CHECKPOINT_WRITES_SQL, note)


class _NoSync:
    """In place of a pipeline: its end alone is to send a Sync, so that all in it is one transaction."""

    async def sync(self) -> None:
        """Send nothing."""


@asynccontextmanager
async def _in_one_pipeline(
    connection: AsyncConnection[DictRow], serde: SerializerProtocol
) -> AsyncIterator[AsyncPostgresSaver]:
    """A saver whose statements are sent together; errors of theirs are raised on leaving."""
    async with connection.pipeline():
        yield AsyncPostgresSaver(connection, cast("AsyncPipeline", _NoSync()), serde)


async def _begin(connection: AsyncConnection[DictRow], at: At) -> DictRow | None:
    """Begin a transaction, wait for other writers, and read the newest checkpoint."""
    # Parameters are put in here, as the server takes none with several statements.
    cursor = AsyncClientCursor(connection, row_factory=dict_row)
    await cursor.execute(_BEGIN, [f"{PAUSE_S}s", _key(at), OWNER, *at])
    while cursor.nextset():
        pass
    return await cursor.fetchone()


async def _end_stalled(connection: AsyncConnection[DictRow], at: At) -> None:
    """End the connection of another writer whose client has sent nothing for a while in the middle of a write."""
    with suppress(InsufficientPrivilege):  # it is a connection of another role
        await connection.execute(_END_STALLED, [_key(at), PAUSE_S])


def _key(at: At) -> int:
    digest = hashlib.sha256("\0".join(at).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _read(found: DictRow | None) -> tuple[str | None, str]:
    return (found["checkpoint_id"], found["owner"]) if found is not None else (None, "")


def _note_loaded(fence: CheckpointFence, at: At, found: CheckpointTuple | None) -> None:
    pending = found.pending_writes or [] if found is not None else []
    fence.load(*at, found.checkpoint["id"] if found is not None else None, owner_in(pending), len(pending))


def _at(config: RunnableConfig) -> At:
    at = config["configurable"]
    return str(at["thread_id"]), at.get("checkpoint_ns", "")
