"""The saver of `open_saver` in PostgreSQL."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Literal, LiteralString

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from psycopg import AsyncConnection
from psycopg.rows import DictRow
from psycopg_pool import AsyncConnectionPool

from graph_agent.persistence.input_index import postgres_input_checkpoint
from graph_agent.persistence.session_index import postgres_threads
from graph_agent.persistence.write_probe import PROBE_BYTES
from graph_agent.runs.postgres_fence import FencedPostgresSaver

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
    """The saver; a run's write and the check that the run may write are one transaction.

    Args:
        pool: Connections in autocommit mode, with rows as mappings.
        serde: The serializer of checkpoints.
    """

    def __init__(self, pool: AsyncConnectionPool[AsyncConnection[DictRow]], serde: SerializerProtocol) -> None:
        super().__init__(pool, serde=serde)
        # The lock of the base class admits one reader at a time, as readers could share a connection. With a pool, each
        # has its own.
        self.lock = _NoLock()
        self._pool = pool

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
        """Return the newest checkpoint of an input by its id (see `graph_agent.execution.inputs`); None for none."""
        newest = await postgres_input_checkpoint(self._pool, thread_id, input_id)
        if newest is None:
            return None
        return await self.aget_tuple(
            {"configurable": {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": newest}}
        )

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
