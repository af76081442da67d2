"""Implements the saver of `open_saver` in PostgreSQL."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import groupby
from typing import Any, Literal, LiteralString

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from psycopg import AsyncConnection
from psycopg.rows import DictRow
from psycopg_pool import AsyncConnectionPool

from graph_agent.checkpoints.fenced_writes import at_of
from graph_agent.checkpoints.postgres_fence import FencedPostgresSaver
from graph_agent.checkpoints.postgres_writer import Recorder, Share, SharedTransactions, Write, WriteQueue, execute
from graph_agent.checkpoints.session_index import postgres_input_checkpoint, postgres_threads
from graph_agent.checkpoints.write_probe import PROBE_BYTES
from graph_agent.runs.fence import CheckpointFence, DeferredWrites
from graph_agent.runs.run import deferred_of, fence_of

_PROBE: LiteralString = (
    "INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob)"
    " VALUES ('/ready', '', '', '', 0, '', '', %s)"
)


class _NoLock(asyncio.Lock):
    """A lock that any number of tasks hold at the same time."""

    async def acquire(self) -> Literal[True]:
        """Return at once."""
        return True

    def release(self) -> None:
        """Do nothing."""


class SharedPostgresSaver(FencedPostgresSaver):
    """The saver; a run's writes and the check that the run may write are one transaction.

    A run that defers its writes commits several supersteps together (see `DeferredWrites`). A read returns after
    the queued writes of its threads have ended.

    Args:
        pool: Connections in autocommit mode, with rows as mappings.
    """

    defers_writes = True
    """See `graph_agent.runs.fence.SupportsDeferral`."""

    def __init__(self, pool: AsyncConnectionPool[AsyncConnection[DictRow]], serde: SerializerProtocol) -> None:
        super().__init__(pool, serde=serde)
        # The lock of the base class admits one reader at a time, as readers could share a connection. With a pool, each
        # has its own.
        self.lock = _NoLock()
        self._pool = pool
        self._queues: dict[DeferredWrites, WriteQueue] = {}
        self._shared = SharedTransactions(self._pipeline)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint; a run that resumes is recorded as its owner."""
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
        """List checkpoints like LangGraph's saver, after the queued writes of their threads."""
        await self._flush(at_of(config)[0] if config is not None else None)
        async for found in super().alist(config, filter=filter, before=before, limit=limit):
            yield found

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the history like LangGraph's saver, after the queued writes of its thread."""
        await self._flush(at_of(config)[0])
        return await super().aget_delta_channel_history(config=config, channels=channels)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; within a run that defers its writes, it may be committed later (see `DeferredWrites`).

        Raises:
            SessionLostError: If a run writes it and another run has continued the session.
        """
        deferred = self._deferred(config)
        if deferred is None:
            await self._flush(at_of(config)[0])
            return await super().aput(config, checkpoint, metadata, new_versions)
        recorder = Recorder(self.serde)
        stored = recorder.put(config, checkpoint, metadata, new_versions)
        self._queue(config, deferred, recorder, checkpoint["id"])
        if deferred.waits(metadata.get("source")):
            await deferred.flush()
        return stored

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task; within a run that defers its writes, they may be committed later.

        Raises:
            SessionLostError: If a run writes them and another run has continued the session.
        """
        deferred = self._deferred(config)
        if deferred is None:
            await self._flush(at_of(config)[0])
            await super().aput_writes(config, writes, task_id, task_path)
            return
        recorder = Recorder(self.serde)
        recorder.put_writes(config, writes, task_id, task_path)
        # The superstep's checkpoint follows and is committed with them.
        self._queue(config, deferred, recorder)

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints and writes of a thread."""
        await self._flush(thread_id)
        await super().adelete_thread(thread_id)

    def _deferred(self, config: RunnableConfig) -> DeferredWrites | None:
        """Return the queued writes of a run; None if a write must not be queued, as on another event loop."""
        return deferred_of(config) if asyncio.get_running_loop() is self.loop else None

    def _queue(
        self, config: RunnableConfig, deferred: DeferredWrites, recorded: Recorder, new_id: str | None = None
    ) -> None:
        queue = self._queues.get(deferred)
        if queue is None:
            fence = fence_of(config)
            assert fence is not None  # a run that defers its writes has one
            queue = WriteQueue(deferred, partial(self._commit, fence), partial(self._forget, deferred))
            self._queues[deferred] = queue
        queue.add(Write(*at_of(config), recorded.statements, new_id))

    def _forget(self, deferred: DeferredWrites) -> None:
        del self._queues[deferred]

    async def _commit(self, fence: CheckpointFence, batch: Sequence[Write]) -> None:
        """Commit writes of a run in their order: one transaction for consecutive writes of one namespace."""
        for at, group in groupby(batch, key=lambda write: (write.thread_id, write.namespace)):
            writes = [*group]
            new_ids = [one.new_id for one in writes if one.new_id is not None]
            own = fence.own_newest(*at, new_ids) if self.supports_pipeline else []
            if own and await self._shared.commit(Share((*at, own[0], own[1], fence.owner), writes)):
                for new_id in new_ids:
                    fence.store(*at, new_id)
                continue

            async def write(saver: FencedPostgresSaver, writes: Sequence[Write] = writes) -> None:
                async with saver._cursor(pipeline=True) as cursor:
                    await execute(cursor, writes)

            await self._write(fence, at, write, new_ids)

    @asynccontextmanager
    async def _pipeline(self) -> AsyncIterator[AsyncConnection[DictRow]]:
        async with self._connection() as connection, connection.pipeline():
            yield connection

    async def _flush(self, thread_id: str | None = None) -> None:
        """Wait until the queued writes of a thread, or of all threads, have ended; on the saver's event loop only."""
        if asyncio.get_running_loop() is not self.loop:
            return
        for queue in [*self._queues.values()]:
            if thread_id is None or thread_id in queue.threads:
                await queue.flush()

    async def aclose(self) -> None:
        """Commit the queued writes."""
        await self._flush()

    async def aprobe(self) -> None:
        """Check that the database accepts writes, with a write that is rolled back.

        Raises:
            psycopg.Error: If it does not.
        """
        async with self._pool.connection() as connection, connection.transaction(force_rollback=True):
            await connection.execute(_PROBE, [os.urandom(PROBE_BYTES)])

    async def list_threads(
        self, *, group: str | None = None, after: str | None = None, limit: int | None = None
    ) -> list[str]:
        """Return the ids of the threads (see `graph_agent.session.history.list_threads`)."""
        return await postgres_threads(self._pool, group, after, limit)

    async def find_input(self, thread_id: str, input_id: str) -> CheckpointTuple | None:
        """Return the newest checkpoint of an input by its id (see `inputs.deduplicator`); None if there is none."""
        await self._flush(thread_id)
        newest = await postgres_input_checkpoint(self._pool, thread_id, input_id)
        if newest is None:
            return None
        return await self.aget_tuple(
            {"configurable": {"thread_id": thread_id, "checkpoint_ns": newest[0], "checkpoint_id": newest[1]}}
        )

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove old checkpoints of threads (see `graph_agent.persistence.prune`).

        Args:
            strategy: `keep_latest` or `delete`.

        Raises:
            SessionBusyError: If a run of a thread is under way.
        """
        # Imported here: few processes prune.
        from graph_agent.checkpoints.pruning.postgres import PostgresTables
        from graph_agent.checkpoints.pruning.threads import prune_to_newest

        await prune_to_newest(PostgresTables(self._pool), self, thread_ids, strategy)
