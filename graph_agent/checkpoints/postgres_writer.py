"""Queues the writes of runs in PostgreSQL, and executes them: a run commits several supersteps in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, LiteralString

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.base import (
    INSERT_CHECKPOINT_WRITES_SQL,
    UPSERT_CHECKPOINT_BLOBS_SQL,
    UPSERT_CHECKPOINTS_SQL,
)
from psycopg import AsyncConnection, AsyncCursor
from psycopg.rows import DictRow
from psycopg_pool import PoolTimeout

from graph_agent.checkpoints.fenced_writes import Statement, StatementRecorder
from graph_agent.checkpoints.postgres_fence import READS_COMMITTED, lock_key
from graph_agent.locks.postgres import OWNER
from graph_agent.runs.fence import DeferredWrites

MAX_DELAY_S = 0.005
"""Maximum seconds between the queuing of a write and the start of its transaction."""

# The rows of LangGraph's statements for one row each, in one statement, which costs a fraction. An upsert accepts each
# key once. LangGraph's other statement, which replaces writes, is rare.
_INSERT_ALL: LiteralString = (
    "WITH blobs AS (INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)"
    " SELECT * FROM unnest(%b::text[], %b::text[], %b::text[], %b::text[], %b::text[], %b::bytea[])"
    " ON CONFLICT (thread_id, checkpoint_ns, channel, version) DO NOTHING),"
    " checkpoints_ AS (INSERT INTO checkpoints"
    " (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata)"
    " SELECT * FROM unnest(%b::text[], %b::text[], %b::text[], %b::text[], %b::jsonb[], %b::jsonb[])"
    " ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id)"
    " DO UPDATE SET checkpoint = EXCLUDED.checkpoint, metadata = EXCLUDED.metadata),"
    " writes AS (INSERT INTO checkpoint_writes"
    " (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob)"
    " SELECT * FROM unnest(%b::text[], %b::text[], %b::text[], %b::text[], %b::text[], %b::int[], %b::text[],"
    " %b::text[], %b::bytea[]) ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO NOTHING)"
)
_COLUMNS = {UPSERT_CHECKPOINT_BLOBS_SQL: 6, UPSERT_CHECKPOINTS_SQL: 6, INSERT_CHECKPOINT_WRITES_SQL: 9}
"""The statements that `_INSERT_ALL` replaces, with their numbers of parameters."""
# Checks like `checkpoints.postgres_fence` for one namespace, but without waiting: a lock that another writer
# holds, or a check that fails, aborts the transaction with a division by zero.
_LOCK_ALL: LiteralString = (
    "SELECT set_config('lock_timeout', %s, true),"
    f" 1 / bool_and({READS_COMMITTED} AND pg_try_advisory_xact_lock(key))::int FROM unnest(%b::bigint[]) AS keys (key)"
)
# All parts of a statement read the state before it, so the check does not read the inserted rows.
_CHECK_AND_INSERT_ALL: LiteralString = (
    f"{_INSERT_ALL} SELECT 1 / bool_and(newest.checkpoint_id IS NOT NULL)::int FROM"
    " unnest(%b::text[], %b::text[], %b::text[], %b::text[], %b::text[])"
    " AS run (thread_id, checkpoint_ns, committed, highest, owner) LEFT JOIN LATERAL (SELECT * FROM"
    " (SELECT * FROM checkpoints c WHERE c.thread_id = run.thread_id AND c.checkpoint_ns = run.checkpoint_ns"
    " ORDER BY c.checkpoint_id DESC LIMIT 1) AS c WHERE c.checkpoint_id IN (run.committed, run.highest)"
    " AND NOT EXISTS (SELECT 1 FROM checkpoint_writes w WHERE w.thread_id = c.thread_id"
    " AND w.checkpoint_ns = c.checkpoint_ns AND w.checkpoint_id = c.checkpoint_id AND w.task_id = %s"
    " AND w.channel NOT IN ('', run.owner))) AS newest ON true"
)
_PAUSE_S = 1
"""Maximum seconds that a transaction of several runs waits for a row; then each run commits alone."""
_MOST_RUNS = 64
"""Maximum runs in a transaction, to limit its duration."""


class Recorder(StatementRecorder, PostgresSaver):
    """LangGraph's saver, which records the statements of a write."""

    @contextmanager
    def _cursor(self, *, pipeline: bool = False) -> Iterator[Any]:
        yield self


@dataclass(frozen=True, slots=True)
class Write:
    """A write of a run."""

    thread_id: str
    namespace: str
    statements: Sequence[Statement]
    new_id: str | None
    """The id of the checkpoint that it stores; None for writes of an existing checkpoint."""


FencedRun = tuple[str, str, str, str, str]
"""A run's thread, namespace, two checkpoint ids of `CheckpointFence.own_newest`, and the id of the run."""


async def execute(cursor: AsyncCursor[DictRow], writes: Sequence[Write], runs: Sequence[FencedRun] = ()) -> None:
    """Execute the statements of writes.

    The order of different statements is irrelevant, as each writes to its own table, or replaces the rows of another.

    Args:
        writes: The writes, in order.
        runs: Their runs, to be checked in the same statement; empty if they were checked.
    """
    by_sql: dict[str, list[Any]] = {sql: [] for sql in _COLUMNS}
    for sql, rows in (statement for write in writes for statement in write.statements):
        by_sql.setdefault(sql, []).extend(rows)
    by_sql[UPSERT_CHECKPOINTS_SQL] = [*{row[:3]: row for row in by_sql[UPSERT_CHECKPOINTS_SQL]}.values()]
    values = [column for sql, count in _COLUMNS.items() for column in _columns(by_sql.pop(sql), count)]
    if runs:
        await cursor.execute(_CHECK_AND_INSERT_ALL, [*values, *_columns(runs, 5), OWNER])
    else:
        await cursor.execute(f"{_INSERT_ALL} SELECT 1", values)
    for sql, rows in by_sql.items():
        await cursor.executemany(sql.encode(), rows)


def _columns(rows: Sequence[Sequence[Any]], count: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(count)]


class WriteQueue:
    """The queued writes of one run. A transaction starts when one is awaited, or after `MAX_DELAY_S`.

    Writes that are queued during a transaction are committed by the next one.

    Args:
        group: The run's writes; its error refuses all later ones.
        commit: Commits some writes in their order.
        drained: Called when no write is left.
    """

    def __init__(
        self, group: DeferredWrites, commit: Callable[[Sequence[Write]], Awaitable[None]], drained: Callable[[], None]
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
            await asyncio.wait([self._running or self._begin()])

    @property
    def _running(self) -> asyncio.Task[None] | None:
        # A task that was cancelled before its first step has committed nothing.
        return self._task if self._task is not None and not self._task.done() else None

    def _start_timer(self) -> None:
        if self._running is None and self._timer is None:
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


@dataclass(frozen=True, slots=True)
class Share:
    """The part of one run in a transaction of several runs: writes to one namespace."""

    run: FencedRun
    writes: Sequence[Write]


class SharedTransactions:
    """Commits the writes of several runs in one transaction; those that arrive during it share the next one.

    Args:
        connect: Opens a pipeline whose statements are one transaction.
    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[AsyncConnection[DictRow]]]) -> None:
        self._connect = connect
        self._waiting: list[tuple[Share, asyncio.Future[bool]]] = []
        self._joined: list[tuple[Share, asyncio.Future[bool]]] = []
        self._task: asyncio.Task[None] | None = None

    async def commit(self, share: Share) -> bool:
        """Commit a run's writes together with those of other runs.

        Returns:
            Whether they are committed. If not, each run must commit alone, which finds the run that has failed.

        Raises:
            psycopg_pool.PoolTimeout: If the database cannot be reached.
        """
        committed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((share, committed))
        if self._task is None:
            self._task = asyncio.create_task(self._commit_waiting())
            self._task.add_done_callback(self._end)
        return await committed

    async def _commit_waiting(self) -> None:
        while self._waiting:
            self._joined, self._waiting = self._waiting[:_MOST_RUNS], self._waiting[_MOST_RUNS:]
            outcome = await self._execute([share for share, _ in self._joined])
            for _, future in self._joined:
                if future.done():
                    continue  # its caller was cancelled
                future.set_result(outcome) if isinstance(outcome, bool) else future.set_exception(outcome)
        self._joined, self._task = [], None

    def _end(self, task: asyncio.Task[None]) -> None:
        if self._task is not task:
            return
        # A program that cancels all tasks cancels this one, too, perhaps before it begins; then each run commits alone.
        left, self._joined, self._waiting, self._task = [*self._joined, *self._waiting], [], [], None
        for _, future in left:
            if not future.done():
                future.set_result(False)

    async def _execute(self, shares: Sequence[Share]) -> bool | PoolTimeout:
        locks = sorted({lock_key((share.run[0], share.run[1])) for share in shares})
        writes = [write for share in shares for write in share.writes]
        try:
            async with self._connect() as connection, connection.cursor(binary=True) as cursor:
                await cursor.execute(_LOCK_ALL, [f"{_PAUSE_S}s", locks])
                await execute(cursor, writes, [share.run for share in shares])
        except PoolTimeout as error:
            return error
        except Exception:  # noqa: BLE001 - each run commits alone next, and raises its own error
            return False
        return True
