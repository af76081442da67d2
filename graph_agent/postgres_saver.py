"""LangGraph's saver in PostgreSQL, which refuses what a run writes once another run has continued its session."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, LiteralString

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
from psycopg import AsyncConnection
from psycopg.rows import DictRow
from psycopg_pool import AsyncConnectionPool

from graph_agent._compat import keep_checkpoint_ids_above
from graph_agent.checkpoint_fence import OWNER, CheckpointFence, owner_in
from graph_agent.runs import fence_of
from graph_agent.session_index import postgres_threads
from graph_agent.write_probe import PROBE_BYTES

PAUSE_S = 10
"""Seconds that a process may pause within a transaction before the server ends its connection."""
WAIT_S = 20
"""Seconds that a write waits for the transaction of another writer of the same thread."""

# Until its transaction ends, a write keeps others of the same thread waiting: each sees what the one before has stored.
_ONE_BY_ONE: LiteralString = (
    "SELECT set_config('idle_in_transaction_session_timeout', %s, true),"
    " set_config('lock_timeout', %s, true), pg_advisory_xact_lock(%s)"
)
_NEWEST: LiteralString = (
    "SELECT c.checkpoint_id, coalesce((SELECT w.channel FROM checkpoint_writes w WHERE w.thread_id = c.thread_id"
    " AND w.checkpoint_ns = c.checkpoint_ns AND w.checkpoint_id = c.checkpoint_id AND w.task_id = %s LIMIT 1), '')"
    " AS owner FROM checkpoints c WHERE c.thread_id = %s AND c.checkpoint_ns = %s"
    " ORDER BY c.checkpoint_id DESC LIMIT 1"
)
_COUNT_WRITES: LiteralString = (
    "SELECT count(*) AS writes FROM checkpoint_writes"
    " WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s"
)
_PROBE: LiteralString = (
    "INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob)"
    " VALUES ('/ready', '', '', '', 0, '', '', %s)"
)

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
                found = await self._over(connection).aget_tuple(config)
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
        async with self._admitted(fence, _at(config), checkpoint["id"]) as saver:
            stored = await saver.aput(config, checkpoint, metadata, new_versions)
        fence.store(*_at(config))
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
        async with self._admitted(fence, _at(config)) as saver:
            await saver.aput_writes(config, writes, task_id, task_path)

    @asynccontextmanager
    async def _admitted(
        self, fence: CheckpointFence, at: At, new_id: str | None = None
    ) -> AsyncIterator[AsyncPostgresSaver]:
        """A transaction in which a run may write: gives a saver that writes in it."""
        fence.check_open()
        async with self._one_by_one(at) as (connection, newest, owner):
            if fence.admit(*at, newest, owner, new_id) and newest is not None:
                counted = await (await connection.execute(_COUNT_WRITES, [*at, newest])).fetchone()
                fence.check_untouched(*at, counted["writes"] if counted else 0)
                await self._note_owner(connection, at, newest, fence.owner)
            yield self._over(connection)

    @asynccontextmanager
    async def _one_by_one(self, at: At) -> AsyncIterator[tuple[AsyncConnection[DictRow], str | None, str]]:
        """A transaction that no other writer of the same namespace is in at the same time.

        Yields:
            Its connection, the id of the newest checkpoint, and the run that is noted as its owner.
        """
        digest = hashlib.sha256("\0".join(at).encode("utf-8", "surrogatepass")).digest()
        async with self._pool.connection() as connection, connection.transaction():
            # Sent and ended together: a server does not see that a client pauses in the middle of a pipeline.
            async with connection.pipeline():
                limits = [f"{PAUSE_S}s", f"{WAIT_S}s"]
                await connection.execute(_ONE_BY_ONE, [*limits, int.from_bytes(digest[:8], "big", signed=True)])
                newest = await connection.execute(_NEWEST, [OWNER, *at])
            yield connection, *_read(await newest.fetchone())

    def _over(self, connection: AsyncConnection[DictRow]) -> AsyncPostgresSaver:
        return AsyncPostgresSaver(connection, serde=self.serde)

    async def _note_owner(self, connection: AsyncConnection[DictRow], at: At, checkpoint_id: str, owner: str) -> None:
        note = (*at, checkpoint_id, OWNER, "", 0, owner, *self.serde.dumps_typed(None))
        await connection.execute(self.UPSERT_CHECKPOINT_WRITES_SQL, note)


def _read(found: DictRow | None) -> tuple[str | None, str]:
    return (found["checkpoint_id"], found["owner"]) if found is not None else (None, "")


def _note_loaded(fence: CheckpointFence, at: At, found: CheckpointTuple | None) -> None:
    pending = found.pending_writes or [] if found is not None else []
    fence.load(*at, found.checkpoint["id"] if found is not None else None, owner_in(pending), len(pending))


def _at(config: RunnableConfig) -> At:
    at = config["configurable"]
    return str(at["thread_id"]), at.get("checkpoint_ns", "")
