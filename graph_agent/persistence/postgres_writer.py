"""Queued writes of runs in PostgreSQL, and their statements: a run commits several steps in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, LiteralString, cast

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.base import (
    INSERT_CHECKPOINT_WRITES_SQL,
    UPSERT_CHECKPOINT_BLOBS_SQL,
    BasePostgresSaver,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from psycopg import AsyncCursor
from psycopg.rows import DictRow

from graph_agent.runs.deferred_writes import DeferredWrites

MAX_DELAY_S = 0.005
"""Maximum seconds between the queuing of a write and the start of its transaction."""

Statement = tuple[str, Sequence[Any]]
"""SQL of LangGraph's saver, and a list of its parameters for each execution."""

# LangGraph's statements for one row, and the same for many rows, which are cheaper in one statement. They keep stored
# rows, so a row may occur twice in one statement.
_FOR_MANY: dict[str, LiteralString] = {
    UPSERT_CHECKPOINT_BLOBS_SQL: (
        "INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob) SELECT * FROM"
        " unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bytea[])"
        " ON CONFLICT (thread_id, checkpoint_ns, channel, version) DO NOTHING"
    ),
    INSERT_CHECKPOINT_WRITES_SQL: (
        "INSERT INTO checkpoint_writes"
        " (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob) SELECT * FROM"
        " unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::int[], %s::text[], %s::text[],"
        " %s::bytea[]) ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO NOTHING"
    ),
}


class Recorder(PostgresSaver):
    """LangGraph's saver, which records the statements of a write instead of executing them.

    Args:
        serde: The serializer of checkpoints.
    """

    def __init__(self, serde: SerializerProtocol) -> None:
        BasePostgresSaver.__init__(self, serde=serde)  # without a connection
        self.statements: list[Statement] = []
        """The statements, in order."""

    @contextmanager
    def _cursor(self, *, pipeline: bool = False) -> Iterator[Any]:
        yield self

    def execute(self, sql: str, values: Any) -> None:
        """Record a statement."""
        self.statements.append((sql, [values]))

    def executemany(self, sql: str, rows: Sequence[Any]) -> None:
        """Record a statement that is executed for each row."""
        self.statements.append((sql, rows))


async def execute(cursor: AsyncCursor[DictRow], statements: Sequence[Statement]) -> None:
    """Execute the statements of writes, with as few messages as possible.

    The order of different statements is irrelevant, as each writes to its own table, or replaces the rows of another.

    Args:
        cursor: A cursor within a transaction.
        statements: The statements in the order of the writes.
    """
    by_sql: dict[str, list[Any]] = {}
    for sql, rows in statements:
        by_sql.setdefault(sql, []).extend(rows)
    for sql, rows in by_sql.items():
        if sql not in _FOR_MANY:
            await cursor.executemany(cast("LiteralString", sql), rows)
        elif rows:
            await cursor.execute(_FOR_MANY[sql], [list(column) for column in zip(*rows, strict=True)])


@dataclass(frozen=True, slots=True)
class Write:
    """A write of a run."""

    thread_id: str
    namespace: str
    statements: Sequence[Statement]
    new_id: str | None
    """The id of the checkpoint that it stores; None for writes of an existing checkpoint."""


class WriteQueue:
    """The queued writes of one run. A transaction starts when one is awaited, or after `MAX_DELAY_S`.

    Writes that are queued during a transaction are committed by the next one.

    Args:
        group: The run's writes; its error refuses all later ones.
        commit: Commits some writes in their order.
        drained: Called when no write is left.
    """

    def __init__(
        self,
        group: DeferredWrites,
        commit: Callable[[Sequence[Write]], Awaitable[None]],
        drained: Callable[[], None],
    ) -> None:
        self._group = group
        self._commit = commit
        self._drained = drained
        self._loop = asyncio.get_running_loop()
        self._pending: list[Write] = []
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._added = 0
        self._ended = 0
        self.threads: set[str] = set()
        """The threads to which the run has written."""

    def add(self, write: Write) -> None:
        """Queue a write.

        Raises:
            BaseException: The error of an earlier write of the run.
        """
        self._group.queue(self.flush)
        self._pending.append(write)
        self._added += 1
        self.threads.add(write.thread_id)
        self._start_timer()

    async def flush(self) -> None:
        """Wait until all writes that were queued before are committed or have failed."""
        last = self._added
        while self._ended < last:
            # Not cancelled with its waiting caller.
            await asyncio.wait([self._task or self._begin()])

    def _start_timer(self) -> None:
        if self._task is None and self._timer is None:
            self._timer = self._loop.call_later(MAX_DELAY_S, self._begin)

    def _begin(self) -> asyncio.Task[None]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._task = self._loop.create_task(self._commit_pending())
        return self._task

    async def _commit_pending(self) -> None:
        batch, self._pending = self._pending, []
        try:
            if self._group.error is None:
                await self._commit(batch)
        except BaseException as error:
            self._group.fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            for _ in batch:
                self._group.finish()
            self._ended += len(batch)
            self._task = None
            if self._pending:
                self._start_timer()
            else:
                self._drained()
