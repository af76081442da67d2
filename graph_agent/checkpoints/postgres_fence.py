"""Extends LangGraph's PostgreSQL saver to refuse a run's writes once another run has continued its session.

`fence_writes` turns a saver that a program or a server supplies into such a saver, in place.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, LiteralString, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
)
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg import AsyncClientCursor, AsyncConnection, AsyncPipeline
from psycopg.errors import DivisionByZero, InsufficientPrivilege, LockNotAvailable
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from graph_agent._compat import raise_checkpoint_id_floor
from graph_agent.checkpoints.fenced_writes import At, at_of, record_loaded
from graph_agent.locks.postgres import OWNER
from graph_agent.runs.fence import CheckpointFence
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
_NEWEST_AND_WRITES: LiteralString = (
    "SELECT newest.*, (SELECT count(*) FROM checkpoint_writes w WHERE w.thread_id = %s AND w.checkpoint_ns = %s"
    f" AND w.checkpoint_id = newest.checkpoint_id) AS writes FROM ({_NEWEST}) AS newest"
)
READS_COMMITTED: LiteralString = "current_setting('transaction_isolation') = 'read committed'"
"""Whether a statement sees all commits before it, also while it waited for the lock. A database or a role may
set another default, with which a transaction sees no commit after the begin of its first statement."""
# Fails with a division by zero, which aborts the transaction, unless the newest checkpoint is one of the run's own.
_CHECK: LiteralString = (
    f"SELECT 1 / count(*) FROM ({_NEWEST}) AS newest WHERE checkpoint_id = ANY(%s) AND owner IN ('', %s)"
    f" AND {READS_COMMITTED}"
)
# One message with several statements, so a paused process cannot stop between them.
_BEGIN: LiteralString = f"BEGIN ISOLATION LEVEL READ COMMITTED; {_LOCK}; {_NEWEST_AND_WRITES}"
# The server does not limit the time between two messages of a pipeline, and a pipeline that ends with a Flush message,
# as psycopg's do, disables `idle_in_transaction_session_timeout`. The waiting writer therefore ends a stalled one.
_END_STALLED: LiteralString = (
    "SELECT pg_terminate_backend(a.pid, 5000) FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
    " WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND a.datname = current_database()"
    " AND l.database = a.datid AND (l.classid::bigint << 32 | l.objid::bigint) = %s"
    " AND a.wait_event_type = 'Client' AND a.state_change < clock_timestamp() - make_interval(secs => %s)"
)

T = TypeVar("T")


def fence_writes(saver: BaseCheckpointSaver[Any]) -> None:
    """Make LangGraph's `AsyncPostgresSaver` refuse writes of runs whose session another run has continued.

    Writes of other graphs are not affected. Other savers are left as they are, and so is one in pipeline mode, in which
    a write cannot be a transaction of its own.
    """
    kind: Any = type(saver)
    if isinstance(saver, AsyncPostgresSaver) and not isinstance(saver, FencedPostgresSaver) and saver.pipe is None:
        # In place: the program that supplied the saver uses it as well, and `database_identity` reads its connection.
        saver.__class__ = _fenced(kind)


@functools.cache
def _fenced(kind: type[AsyncPostgresSaver]) -> type[FencedPostgresSaver]:
    return cast("type[FencedPostgresSaver]", type(kind.__name__, (FencedPostgresSaver, kind), {}))


class FencedPostgresSaver(AsyncPostgresSaver):
    """The saver; a run's write and the check that the run may write are one transaction."""

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint; a run that resumes is recorded as its owner."""
        fence, at = fence_of(config), at_of(config)
        if fence is None or fence.has_loaded(*at):
            found = await super().aget_tuple(config)
        elif get_checkpoint_id(config):
            # The run forks from an older checkpoint. The newest one is recorded to detect writes of another run.
            async with self._connection() as connection:
                fence.load(*at, *_read(await _row(connection, _NEWEST, [OWNER, *at])), None)
            found = await super().aget_tuple(config)
        elif fence.claims:
            async with self._exclusive_transaction(at) as (connection, _):
                found = await super(FencedPostgresSaver, self._over(connection)).aget_tuple(config)
                if found is not None:
                    await self._record_owner(connection, at, found.checkpoint["id"], fence.owner)
            record_loaded(fence, at, found)
        else:
            found = await super().aget_tuple(config)
            record_loaded(fence, at, found)
        if found is not None:
            raise_checkpoint_id_floor(found.checkpoint["id"])
        return found

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

        async def write(saver: FencedPostgresSaver) -> RunnableConfig:
            return await super().aput(config, checkpoint, metadata, new_versions)

        return await self._write(fence, at_of(config), write, [checkpoint["id"]])

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

        async def write(saver: FencedPostgresSaver) -> None:
            await super().aput_writes(config, writes, task_id, task_path)

        await self._write(fence, at_of(config), write)

    async def _write(
        self,
        fence: CheckpointFence,
        at: At,
        write: Callable[[FencedPostgresSaver], Awaitable[T]],
        new_ids: Sequence[str] = (),
    ) -> T:
        """Check that the run may write, and write, in one transaction.

        Args:
            at: The thread and namespace to write to.
            write: Writes with the given saver; called again if the first transaction failed.
            new_ids: The ids of the checkpoints to store, in order; empty for writes of an existing one.

        Raises:
            SessionLostError: If another run has continued the session.
        """
        result = await self._write_fenced(fence, at, write, new_ids)
        for new_id in new_ids:
            fence.store(*at, new_id)
        return result

    async def _write_fenced(
        self,
        fence: CheckpointFence,
        at: At,
        write: Callable[[FencedPostgresSaver], Awaitable[T]],
        new_ids: Sequence[str],
    ) -> T:
        own = fence.own_newest(*at, new_ids)
        if own and self.supports_pipeline:
            try:
                async with self._connection() as connection, self._in_one_pipeline(connection) as saver:
                    await connection.execute(_LOCK, [f"{PAUSE_S}s", lock_key(at)])
                    await connection.execute(_CHECK, [OWNER, *at, own, fence.owner])
                    return await write(saver)
            except LockNotAvailable:
                async with self._connection() as connection:
                    await _end_stalled(connection, at)
            except DivisionByZero:
                pass  # `admit` decides
        async with self._exclusive_transaction(at) as (connection, found):
            newest, owner = _read(found)
            claims = fence.admit(*at, newest, owner, new_ids)
            if claims and found is not None:
                fence.check_untouched(*at, found["writes"])

            async def write_as_owner(saver: FencedPostgresSaver) -> T:
                if claims and newest is not None:
                    await self._record_owner(connection, at, newest, fence.owner)
                return await write(saver)

            if not self.supports_pipeline:
                return await write_as_owner(self._over(connection))
            async with self._in_one_pipeline(connection) as saver:
                result = await write_as_owner(saver)
                await connection.commit()
                return result

    @asynccontextmanager
    async def _exclusive_transaction(self, at: At) -> AsyncIterator[tuple[AsyncConnection[DictRow], DictRow | None]]:
        """Open a transaction that excludes other writers of the same namespace.

        Yields:
            The connection, and the newest checkpoint: its id, the run that is recorded as its owner, and the number
            of its writes; None without checkpoints.
        """
        async with self._connection() as connection:
            try:
                found = await _begin(connection, at)
            except LockNotAvailable:
                await connection.rollback()
                await _end_stalled(connection, at)
                found = await _begin(connection, at)
            # `_connection` commits the transaction, or rolls it back after an exception.
            yield connection, found

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection[DictRow]]:
        """Acquire a connection; its transaction is committed on exit, or rolled back after an exception."""
        if isinstance(self.conn, AsyncConnectionPool):
            async with self.conn.connection() as connection:
                yield connection
            return
        # The connection's only user, as in LangGraph's saver.
        async with self.lock:
            try:
                yield self.conn
            except BaseException:
                await self.conn.rollback()
                raise
            await self.conn.commit()

    def _over(self, connection: AsyncConnection[DictRow]) -> FencedPostgresSaver:
        """Return a copy of this saver whose statements are a part of a connection's open transaction."""
        saver = copy.copy(self)
        saver.conn, saver.pipe, saver.lock = connection, cast("AsyncPipeline", _NoSync()), asyncio.Lock()
        return saver

    @asynccontextmanager
    async def _in_one_pipeline(self, connection: AsyncConnection[DictRow]) -> AsyncIterator[FencedPostgresSaver]:
        """Yield a copy of this saver whose statements are sent together; their errors are raised on exit."""
        async with connection.pipeline():
            yield self._over(connection)

    async def _record_owner(self, connection: AsyncConnection[DictRow], at: At, checkpoint_id: str, owner: str) -> None:
        row = (*at, checkpoint_id, OWNER, "", 0, owner, *self.serde.dumps_typed(None))
        await connection.execute(self.UPSERT_CHECKPOINT_WRITES_SQL, row)


class _NoSync:
    """Stand-in for a pipeline whose `sync` does nothing, so that the whole pipeline is one transaction."""

    async def sync(self) -> None:
        """Do nothing."""


async def _row(connection: AsyncConnection[Any], query: LiteralString, values: Sequence[Any]) -> DictRow | None:
    async with connection.cursor(row_factory=dict_row) as cursor:
        return await (await cursor.execute(query, values)).fetchone()


async def _begin(connection: AsyncConnection[DictRow], at: At) -> DictRow | None:
    """Begin a transaction, wait for other writers, and read the newest checkpoint."""
    # Parameters are inserted on the client, as the server accepts none with several statements.
    cursor = AsyncClientCursor(connection, row_factory=dict_row)
    await cursor.execute(_BEGIN, [f"{PAUSE_S}s", lock_key(at), *at, OWNER, *at])
    while cursor.nextset():
        pass
    return await cursor.fetchone()


async def _end_stalled(connection: AsyncConnection[DictRow], at: At) -> None:
    """End the connection of another writer whose client stalled during a write."""
    with suppress(InsufficientPrivilege):  # the connection belongs to another role
        await connection.execute(_END_STALLED, [lock_key(at), PAUSE_S])


def lock_key(at: At) -> int:
    """Return the key of the advisory lock that a writer of a namespace holds."""
    digest = hashlib.sha256("\0".join(at).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _read(found: DictRow | None) -> tuple[str | None, str]:
    return (found["checkpoint_id"], found["owner"]) if found is not None else (None, "")
