"""Extends LangGraph's PostgreSQL saver to refuse a run's writes once another run has continued its session.

A session is one LangGraph thread. A run keeps a fence (`CheckpointFence`): the newest checkpoint when it began (its
base) and those that it has stored since. A write is refused unless the newest checkpoint of the thread is one of these.
A run that resumes from a checkpoint is recorded in the database as its owner, because two runs could resume from the
same one.

The writes of runs are queued: a run commits several supersteps in one transaction. `fence_writes` turns a saver that a
program or a server supplies into such a saver, in place.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, LiteralString, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
)
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.postgres.base import (
    INSERT_CHECKPOINT_WRITES_SQL,
    UPSERT_CHECKPOINT_BLOBS_SQL,
    UPSERT_CHECKPOINTS_SQL,
)
from psycopg import AsyncClientCursor, AsyncConnection, AsyncCursor, AsyncPipeline
from psycopg.errors import DivisionByZero, InsufficientPrivilege, LockNotAvailable
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from graph_agent.base._compat.checkpoints import raise_checkpoint_id_floor
from graph_agent.core.state.fence import OWNER, CheckpointFence, DeferredWrites
from graph_agent.core.state.own_checkpoint import fence_of
from graph_agent.storage.checkpoints.fenced_writes import (
    At,
    Statement,
    StatementRecorder,
    at_of,
    next_version,
    record_loaded,
)

PAUSE_S = 10
"""Seconds a write waits for another writer of its thread; then it disconnects a stalled writer and waits once more."""

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

    The class of the object is changed; its connection and settings remain. Writes of other graphs are not affected.
    Other savers are left as they are, and so is one in pipeline mode, in which a write cannot be a transaction of its
    own.
    """
    kind: Any = type(saver)
    if isinstance(saver, AsyncPostgresSaver) and not isinstance(saver, FencedPostgresSaver) and saver.pipe is None:
        # In place: the program that supplied the saver uses it as well, and `database_identity` reads its connection.
        saver.__class__ = _fenced(kind)


@functools.cache
def _fenced(kind: type[AsyncPostgresSaver]) -> type[FencedPostgresSaver]:
    """Return a subclass of a saver's class and of `FencedPostgresSaver`; the same one for each call."""
    return cast("type[FencedPostgresSaver]", type(kind.__name__, (FencedPostgresSaver, kind), {}))


class FencedPostgresSaver(AsyncPostgresSaver):
    """LangGraph's saver, in which a run's write and the check that the run may write are one transaction.

    Requests of other graphs go to the base class unchanged.
    """

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return the version of a channel that follows `current` (see `next_version`); `channel` is not used."""
        return next_version(current)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint as LangGraph's saver does, by default the newest; None if it does not exist.

        The first read of a run in a namespace also records the newest checkpoint in the run's fence, as its base. A run
        that resumes (`fence.claims`), and names no checkpoint, is then stored as its owner, in the transaction of the
        read. Later checkpoints of this process get higher ids. Raises `SessionLostError` if the fence expects another.
        """
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
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: dict[str, Any]
    ) -> RunnableConfig:
        """Store a checkpoint, and return its config as LangGraph's saver does.

        Raises `SessionLostError` if the run has lost the session to another run; nothing is stored then.
        """
        fence = fence_of(config)
        if fence is None:
            return await super().aput(config, checkpoint, metadata, new_versions)

        async def write(saver: FencedPostgresSaver) -> RunnableConfig:
            """Store the checkpoint over the given saver's connection, and return its config."""
            return await super().aput(config, checkpoint, metadata, new_versions)

        return await self._write(fence, at_of(config), write, [checkpoint["id"]])

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task to the checkpoint in `config`, as LangGraph's saver does.

        Raises `SessionLostError` if the run has lost the session to another run; nothing is stored then.
        """
        fence = fence_of(config)
        if fence is None:
            await super().aput_writes(config, writes, task_id, task_path)
            return

        async def write(saver: FencedPostgresSaver) -> None:
            """Store the writes with the base class, over the given saver's connection."""
            await super().aput_writes(config, writes, task_id, task_path)

        await self._write(fence, at_of(config), write)

    async def _write(
        self,
        fence: CheckpointFence,
        at: At,
        write: Callable[[FencedPostgresSaver], Awaitable[T]],
        new_ids: Sequence[str] = (),
    ) -> T:
        """Check that the run may write to a namespace, and write, in one transaction; return what `write` returns.

        `write` performs it with a saver whose statements are in the transaction; it is called again if a first, cheaper
        transaction failed. `new_ids` are the ids of the checkpoints to store, in order, which the fence records as
        committed; empty for writes to an existing checkpoint. Raises `SessionLostError` if another run has continued
        the session; nothing is stored then.
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
        """Check the fence, perform `write` and return its result; unlike `_write`, do not record the commit.

        A run with a committed checkpoint first tries one pipeline, in which SQL checks the newest checkpoint.
        Otherwise, or if that fails, a transaction reads the newest checkpoint, and the fence decides. If the run
        resumes from the newest checkpoint, it is then stored as its owner. A stalled holder of the lock is ended.
        Raises `SessionLostError` if the fence refuses the write, and what `_exclusive_transaction` raises.
        """
        own = fence.own_newest(*at, new_ids)
        # One round trip in place of several; nearly all writes take this way.
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
                """Store the run as owner of the newest checkpoint if it claims it, then write."""
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
        """Open a transaction that excludes other writers of the same namespace; it is rolled back after an exception.

        Yields the connection, and the newest checkpoint as a row with `checkpoint_id`, `owner` (empty if none) and the
        number of its `writes`; None without one. A writer that holds the lock for `PAUSE_S` seconds while its client
        stalls is disconnected. Raises `psycopg.errors.LockNotAvailable` if the lock is still held after as long again.
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
        """Acquire a connection; its transaction is committed on exit, or rolled back after an exception.

        With a pool it is a connection of the pool; otherwise the saver's only one, which other tasks wait for.
        """
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
        """Return a copy of this saver whose statements are a part of the open transaction of a connection."""
        saver = copy.copy(self)
        saver.conn, saver.pipe, saver.lock = connection, cast("AsyncPipeline", _NoSync()), asyncio.Lock()
        return saver

    @asynccontextmanager
    async def _in_one_pipeline(self, connection: AsyncConnection[DictRow]) -> AsyncIterator[FencedPostgresSaver]:
        """Yield a copy of this saver whose statements are sent together; their errors are raised on exit."""
        async with connection.pipeline():
            yield self._over(connection)

    async def _record_owner(self, connection: AsyncConnection[DictRow], at: At, checkpoint_id: str, owner: str) -> None:
        """Store a run as the owner of a checkpoint: a write with the task id `OWNER`, whose channel is the run's id
        `owner`.
        """
        row = (*at, checkpoint_id, OWNER, "", 0, owner, *self.serde.dumps_typed(None))
        await connection.execute(self.UPSERT_CHECKPOINT_WRITES_SQL, row)


class _NoSync:
    """Stand-in for a pipeline whose `sync` does nothing, so that the whole pipeline is one transaction."""

    async def sync(self) -> None:
        """Do nothing."""


async def _row(connection: AsyncConnection[Any], query: LiteralString, values: Sequence[Any]) -> DictRow | None:
    """Return the first row of a query as a mapping; None if there is none."""
    async with connection.cursor(row_factory=dict_row) as cursor:
        return await (await cursor.execute(query, values)).fetchone()


async def _begin(connection: AsyncConnection[DictRow], at: At) -> DictRow | None:
    """Begin a transaction, wait up to `PAUSE_S` seconds for the lock of a namespace, and read its newest checkpoint.

    Returns the row of `_NEWEST_AND_WRITES`, if any. Raises `psycopg.errors.LockNotAvailable` after that time.
    """
    # Parameters are inserted on the client, as the server accepts none with several statements.
    cursor = AsyncClientCursor(connection, row_factory=dict_row)
    await cursor.execute(_BEGIN, [f"{PAUSE_S}s", lock_key(at), *at, OWNER, *at])
    while cursor.nextset():
        pass
    return await cursor.fetchone()


async def _end_stalled(connection: AsyncConnection[DictRow], at: At) -> None:
    """Disconnect the writer that holds the lock of a namespace if its client has sent nothing for `PAUSE_S` seconds.

    Does nothing if the database refuses that, because the connection belongs to another role.
    """
    with suppress(InsufficientPrivilege):  # the connection belongs to another role
        await connection.execute(_END_STALLED, [lock_key(at), PAUSE_S])


def lock_key(at: At) -> int:
    """Return the key of the advisory lock that a writer of a namespace holds: a signed number of 64 bits."""
    digest = hashlib.sha256("\0".join(at).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _read(found: DictRow | None) -> tuple[str | None, str]:
    """Return the id of the newest checkpoint in a row, and its owner, empty if none; `(None, "")` without a row."""
    return (found["checkpoint_id"], found["owner"]) if found is not None else (None, "")


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
# One lock for each namespace, without waiting: a lock that another writer holds, or a check that fails, aborts the
# transaction with a division by zero. To wait here would delay the runs that share the transaction.
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


class PostgresRecorder(StatementRecorder, PostgresSaver):
    """LangGraph's saver, which records the statements of a write instead of executing them."""

    def _cursor(self, *, pipeline: bool = False) -> Any:
        """Return the recorder itself as the cursor."""
        return self


@dataclass(frozen=True, slots=True)
class FencedWrite:
    """A queued write of a run, of one checkpoint or of one task's values."""

    thread_id: str
    namespace: str
    statements: Sequence[Statement]
    new_id: str | None
    """The id of the checkpoint that it stores; None for writes of an existing checkpoint."""


FencedRun = tuple[str, str, str, str, str]
"""A run's thread, namespace, two checkpoint ids of `CheckpointFence.own_newest`, and the id of the run."""


async def execute(cursor: AsyncCursor[DictRow], writes: Sequence[FencedWrite], runs: Sequence[FencedRun] = ()) -> None:
    """Execute the statements of writes over a binary cursor, as few statements with many rows; commit nothing.

    The order of different statements is irrelevant, as each writes to its own table, or replaces the rows of another.
    The same statement checks `runs`, if any, and raises `psycopg.errors.DivisionByZero` if one of them may not write.
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
    """Return rows as one list for each of `count` columns; the lists are empty without rows."""
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(count)]


class WriteQueue:
    """The queued writes of one run, which transactions commit in order.

    A transaction starts `MAX_DELAY_S` seconds after the first write, or at once if one is awaited. Writes that are
    queued during a transaction are committed by the next one. `group` receives an error, after which no later write of
    the run is committed. `commit` commits a batch or raises; `drained` is called when no write is left.
    """

    def __init__(
        self,
        group: DeferredWrites,
        commit: Callable[[Sequence[FencedWrite]], Awaitable[None]],
        drained: Callable[[], None],
    ) -> None:
        self._group = group
        self._commit = commit
        self._drained = drained
        self._loop = asyncio.get_running_loop()
        self._pending: list[FencedWrite] = []
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._added = 0
        self._ended = 0
        self.threads: set[str] = set()
        """The threads to which the run has written."""

    def add(self, write: FencedWrite) -> None:
        """Queue a write, and return at once. Raises the error of an earlier write of the run."""
        self._group.queue(self.flush)
        self._pending.append(write)
        self._added += 1
        self.threads.add(write.thread_id)
        self._start_timer()

    async def flush(self) -> None:
        """Wait until all writes that were queued before are committed or have failed; errors are not raised here."""
        last = self._added
        while self._ended < last:
            # Not cancelled with its waiting caller.
            await asyncio.wait([self._running or self._begin()])

    @property
    def _running(self) -> asyncio.Task[None] | None:
        """The task of the transaction in progress; None if there is none."""
        # A task that was cancelled before its first step has committed nothing.
        return self._task if self._task is not None and not self._task.done() else None

    def _start_timer(self) -> None:
        """Start a transaction in `MAX_DELAY_S` seconds, unless one is in progress or due."""
        if self._running is None and self._timer is None:
            self._timer = self._loop.call_later(MAX_DELAY_S, self._begin)

    def _begin(self) -> asyncio.Task[None]:
        """Start a transaction for the queued writes now, and return its task."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._task = self._loop.create_task(self._commit_pending())
        return self._task

    async def _commit_pending(self) -> None:
        """Commit the queued writes; record an error in the group, after which later batches are dropped, not committed.

        Then calls `drained`, or starts the timer for writes that were queued meanwhile. Only a cancellation is raised
        again.
        """
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
    """The part of one run in a transaction of several runs: its writes to one namespace."""

    run: FencedRun
    writes: Sequence[FencedWrite]


class SharedTransactions:
    """Commits the writes of several runs in one transaction; those that arrive during it share the next one.

    `connect` opens a connection in pipeline mode, whose transaction is committed on exit.
    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[AsyncConnection[DictRow]]]) -> None:
        self._connect = connect
        self._waiting: list[tuple[Share, asyncio.Future[bool]]] = []
        self._joined: list[tuple[Share, asyncio.Future[bool]]] = []
        self._task: asyncio.Task[None] | None = None

    async def commit(self, share: Share) -> bool:
        """Commit a run's writes together with those of other runs; return whether they are committed.

        If not, nothing of the shared transaction is stored, and each run must commit alone, which finds the run that
        has failed. Raises `PoolTimeout` if no connection is available.
        """
        committed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((share, committed))
        if self._task is None:
            self._task = asyncio.create_task(self._commit_waiting())
            self._task.add_done_callback(self._end)
        return await committed

    async def _commit_waiting(self) -> None:
        """Commit the waiting writes of several runs, up to `_MOST_RUNS` runs in a transaction, until none waits.

        The future of each run receives True if its writes are committed, False if the transaction failed, or the
        `PoolTimeout`.
        """
        while self._waiting:
            self._joined, self._waiting = self._waiting[:_MOST_RUNS], self._waiting[_MOST_RUNS:]
            outcome = await self._execute([share for share, _ in self._joined])
            for _, future in self._joined:
                if future.done():
                    continue  # its caller was cancelled
                future.set_result(outcome) if isinstance(outcome, bool) else future.set_exception(outcome)
        self._joined, self._task = [], None

    def _end(self, task: asyncio.Task[None]) -> None:
        """After a cancellation of the shared task, return False from each waiting `commit`; each run commits alone."""
        if self._task is not task:
            return
        # A program that cancels all tasks cancels this one, too, perhaps before it begins; then each run commits alone.
        left, self._joined, self._waiting, self._task = [*self._joined, *self._waiting], [], [], None
        for _, future in left:
            if not future.done():
                future.set_result(False)

    async def _execute(self, shares: Sequence[Share]) -> bool | PoolTimeout:
        """Commit the writes of several runs in one transaction; False if that fails. A `PoolTimeout` is returned."""
        # Sorted: two processes that acquire the same locks in another order could wait for each other.
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
