"""Implements LangGraph's saver and Store in SQLite, for files of several processes and many concurrent sessions.

LangGraph's asynchronous saver passes each statement to a thread and commits each operation. This one serializes a write
at once, and executes it on a thread of its own: an operation is one job, and queued jobs share one commit.

A session is one LangGraph thread. A run keeps a fence (`CheckpointFence`): the newest checkpoint when it began (its
base) and those that it has stored since. A write is refused unless the newest checkpoint of the thread is one of these.
A run that resumes from a checkpoint is recorded as its owner.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.base import Op, PutOp, Result
from langgraph.store.sqlite.aio import AsyncSqliteStore

from graph_agent.base._compat.checkpoints import raise_checkpoint_id_floor
from graph_agent.base._compat.release import stop_batching
from graph_agent.base._internal.garbage import paused_collection
from graph_agent.base._internal.sync_bridge import await_uninterrupted, call_in_thread
from graph_agent.base.inbox import ControlMessage
from graph_agent.base.input_ids import INPUT_ID
from graph_agent.base.sqlite_connection import LockWaitConnection, Patience, check_sqlite_file
from graph_agent.core.state.fence import OWNER
from graph_agent.core.state.own_checkpoint import deferred_of, fence_of
from graph_agent.storage.checkpoints.fenced_writes import Statement, at_of, next_version, record_loaded
from graph_agent.storage.checkpoints.note_rows import forget_sqlite_notes, sqlite_notes
from graph_agent.storage.checkpoints.session_index import SQLITE_INDEX, SQLITE_INPUT_INDEX, sqlite_threads
from graph_agent.storage.checkpoints.sqlite_writer import SqliteRecorder, Writer
from graph_agent.storage.checkpoints.write_probe import check_space, check_sqlite, probe_sqlite

T = TypeVar("T")

_NEWEST = (
    "SELECT c.checkpoint_id, coalesce((SELECT w.channel FROM writes w WHERE w.thread_id = c.thread_id"
    " AND w.checkpoint_ns = c.checkpoint_ns AND w.checkpoint_id = c.checkpoint_id AND w.task_id = ?), '')"
    " FROM checkpoints c WHERE c.thread_id = ? AND c.checkpoint_ns = ? ORDER BY c.checkpoint_id DESC LIMIT 1"
)
"""Id and owner of the newest checkpoint of a namespace."""
_COUNT_WRITES = "SELECT count(*) FROM writes WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
_RECORD_OWNER = (
    "INSERT OR REPLACE INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value)"
    " VALUES (?, ?, ?, ?, 0, ?, ?, ?)"
)

_PROBE = (
    "INSERT OR REPLACE INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value)"
    " VALUES ('/ready', '', '', '', 0, '', '', ?)"
)
"""The write of `SharedSqliteSaver.aprobe`."""


class SharedSqliteSaver(SqliteSaver):
    """LangGraph's saver, whose thread performs each write in one transaction with the check that the run may write.

    Other processes may use the file at the same time, and any thread may use the connection. The asynchronous methods
    serve every event loop. `serde` converts the stored values. All methods raise `sqlite3.Error` if the file cannot be
    used.
    """

    defers_writes = True
    """See `graph_agent.core.state.fence.SupportsDeferral`."""
    serves_any_loop = True
    """See `graph_agent.base._internal.saver_loops`."""

    def __init__(self, file: Path, connection: sqlite3.Connection, serde: SerializerProtocol) -> None:
        super().__init__(connection, serde=serde)
        self.database = file
        """The path of the file."""
        self._has_index = False
        self._newest_in: dict[tuple[str, str], tuple[str | None, str]] = {}
        """The newest checkpoint and its owner by thread and namespace, as read in one transaction of the writer."""
        self._newest_as_of = 0
        self._writer = Writer(connection, self.lock, self.setup)

    def setup(self) -> None:
        """Create missing tables and indexes; wait while another process creates them. Blocks, and is called on the
        thread.

        Raises `sqlite3.Error` if the file cannot be written.
        """
        retry = Patience()
        while not self._has_index:
            try:
                super().setup()
                self.conn.execute(SQLITE_INDEX)
                self.conn.execute(SQLITE_INPUT_INDEX)
                self._has_index = True
            except (sqlite3.OperationalError, sqlite3.IntegrityError) as error:
                time.sleep(retry.pause_s(error))

    @contextmanager
    def cursor(self, transaction: bool = True) -> Iterator[sqlite3.Cursor]:
        """Yield a cursor with the lock held, and commit on exit if `transaction`.

        On the writer thread, whose jobs share a transaction, neither the lock is acquired nor is anything committed.
        """
        if not self._writer.is_writer_thread:
            with super().cursor(transaction) as cursor:
                yield cursor
            return
        with closing(self.conn.cursor()) as cursor:
            yield cursor

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return the version of a channel that follows `current` (see `next_version`); `channel` is not used."""
        return next_version(current)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint with the id in `config`, or without one the newest of its namespace; None if there is
        none.

        Blocks. The first read of a run in a namespace also records the newest checkpoint in the run's fence, as its
        base. A run that resumes (`fence.claims`) is then stored as the owner of that checkpoint, in the transaction of
        the read. Raises `SessionLostError` if the fence expects another newest checkpoint.
        """
        loads, claims = self._loads(config)
        return self._writer.run_blocking(partial(self._load, config, loads), writes=claims)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint with the id in `config`, or without one the newest of its namespace; None if there is
        none.

        The first read of a run records its base, and a run that resumes as the owner (see `get_tuple`, which blocks).
        """
        loads, claims = self._loads(config)
        return await self._writer.run(partial(self._load, config, loads), writes=claims)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, newest first; all are read before the first one is yielded.

        Args:
            config: The thread, and optionally the namespace and the checkpoint; None for all threads.
            filter: Entries that the metadata must have; None for no condition.
            before: Config of the checkpoint before which to list; None for no condition.
            limit: Maximum number of checkpoints; None for no limit.
        """
        listed = partial(super().list, config, filter=filter, before=before, limit=limit)
        for found in await self._writer.run(lambda: [*listed()], writes=False):
            yield found

    async def find_input(self, thread_id: str, input_id: str) -> CheckpointTuple | None:
        """Return the newest checkpoint of the input with an id that its sender gave it, in any namespace; None if there
        is none.
        """
        # In any namespace: answers that were stored apart have one of their own.
        thread: RunnableConfig = {"configurable": {"thread_id": thread_id}}
        return await anext(self.alist(thread, filter={INPUT_ID: input_id}, limit=1), None)

    async def stored_notes(self, thread_id: str) -> list[ControlMessage]:
        """Return the notes to a session in the Store of the file, in the order of sending; empty if it has no Store."""
        return await self._writer.run(partial(sqlite_notes, self.conn, thread_id), writes=False)

    async def forget_notes(self, thread_id: str, keys: Collection[str]) -> None:
        """Remove notes to a session by their keys; unknown keys are ignored. The file must have a Store."""
        await self._writer.run(partial(forget_sqlite_notes, self.conn, thread_id, keys))

    @property
    def address(self) -> str:
        """The URL of the file."""
        return f"sqlite:///{self.database}"

    async def list_threads(
        self, *, group: str | None = None, after: str | None = None, limit: int | None = None
    ) -> list[str]:
        """Return ids of threads, newest first by their first checkpoint, read over a separate connection.

        The writes that were queued before are committed first.

        Args:
            group: Text that the ids must begin with, up to and with their first slash, followed by one more segment;
                empty for ids without a slash, None for all.
            after: Id of the thread after which the list begins; None for the beginning. `KeyError` if it does not
                exist.
            limit: Maximum number of ids; None for no limit.
        """
        # The other connection reads committed sessions only, and needs the index.
        await self._writer.run(lambda: None, writes=not self._has_index)
        return await sqlite_threads(self.database, group, after, limit)

    def put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: dict[str, Any]
    ) -> RunnableConfig:
        """Store and commit a checkpoint, and return its config; blocks.

        Raises `SessionLostError` if the run has lost the session to another run; nothing is stored then.
        """
        stored, job, committed = self._recorded_put(config, checkpoint, metadata, new_versions)
        self._writer.run_blocking(job, committed=committed)
        return stored

    async def aput(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: dict[str, Any]
    ) -> RunnableConfig:
        """Store a checkpoint, and return its config.

        It is committed on return, unless its run defers its writes (`DeferredWrites`) and does not need this one
        committed. Raises `SessionLostError` if the run has lost the session to another run, or the error of an earlier
        deferred write of the run.
        """
        stored, job, committed = self._recorded_put(config, checkpoint, metadata, new_versions)
        deferred = deferred_of(config)
        if deferred is None or deferred.waits(metadata.get("source")):
            await self._writer.run(job, group=deferred, committed=committed)
        else:
            self._writer.defer(job, deferred, committed)
        return stored

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store and commit the writes of a task to the checkpoint in `config`; blocks.

        Raises `SessionLostError` if the run has lost the session to another run; nothing is stored then.
        """
        self._writer.run_blocking(self._recorded_writes(config, writes, task_id, task_path))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task to the checkpoint in `config`.

        They are committed on return, unless the run defers its writes (`DeferredWrites`). Raises `SessionLostError` if
        the run has lost the session to another run, or the error of an earlier deferred write of the run.
        """
        job = self._recorded_writes(config, writes, task_id, task_path)
        deferred = deferred_of(config)
        if deferred is None:
            await self._writer.run(job)
        else:
            # The superstep's checkpoint follows and is committed with them.
            self._writer.defer(job, deferred)

    def _recorded_put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, versions: ChannelVersions
    ) -> tuple[RunnableConfig, Callable[[], None], Callable[[], None]]:
        """Serialize a checkpoint; return its config, the job that stores it, and a function for after the commit."""
        recorder = SqliteRecorder(self.serde)
        stored = recorder.put(config, checkpoint, metadata, versions)
        job = partial(self._store, config, recorder.statements, checkpoint["id"])
        return stored, job, partial(_record_stored, config, checkpoint["id"])

    def _recorded_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> Callable[[], None]:
        """Serialize the writes of a task, and return the job that stores them."""
        recorder = SqliteRecorder(self.serde)
        recorder.put_writes(config, writes, task_id, task_path)
        return partial(self._store, config, recorder.statements)

    def delete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints and writes of a thread, and commit; blocks. Nothing happens if it does not exist."""
        self._writer.run_blocking(partial(self._delete, thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints and writes of a thread, and commit. Nothing happens if it does not exist."""
        await self._writer.run(partial(self._delete, thread_id))

    def _delete(self, thread_id: str) -> None:
        """Delete a thread on the writer thread, and forget the newest checkpoints that this transaction has read."""
        super().delete_thread(thread_id)
        self._newest_in.clear()

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove old checkpoints of threads; unknown threads are ignored.

        The strategy `keep_latest` trims each thread to its first and newest checkpoint (see
        `graph_agent.persistence.prune`), `delete` removes it. Raises `SessionBusyError` if a thread was skipped, e.g.
        because a run of it is in progress; the threads after it are not pruned. Raises `ValueError` for another
        strategy, and `TypeError` if `thread_ids` is a single text.
        """
        # Imported here: few processes prune.
        from graph_agent.storage.checkpoints.pruning.sessions import prune_to_newest
        from graph_agent.storage.checkpoints.pruning.sqlite import SqliteTables

        await self._writer.run(lambda: None)  # creates the tables
        await prune_to_newest(SqliteTables(self.database), self, thread_ids, strategy)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the last full copy of each delta channel and the writes after it, as LangGraph's saver does.

        A delta channel stores only what each step wrote; its value is rebuilt from this history.
        """
        read = super().get_delta_channel_history

        def history() -> Mapping[str, DeltaChannelHistory]:
            """Read the history on the writer thread."""
            with paused_collection():
                return read(config=config, channels=channels)

        return await self._writer.run(history, writes=False)

    @staticmethod
    def _loads(config: RunnableConfig) -> tuple[bool, bool]:
        """Return whether this read is the first of a run in its namespace, and whether the run then becomes the owner
        of the checkpoint, so that older runs can store nothing more. Both are False for a config without a run.
        """
        fence = fence_of(config)
        loads = fence is not None and not fence.has_loaded(*at_of(config))
        return loads, loads and fence is not None and fence.claims

    def _load(self, config: RunnableConfig, loads: bool) -> CheckpointTuple | None:
        """Return a checkpoint, or None if it does not exist. Must be called on the writer thread.

        If `loads`, the newest checkpoint is also recorded as the base of the run, and a run that resumes from it is
        stored as its owner, unless `config` names a checkpoint. Ids of checkpoints created later in this process are
        higher than the one returned. Raises `SessionLostError` if the run expects another newest checkpoint.
        """
        fence, at = fence_of(config), at_of(config)
        if fence is not None and loads and get_checkpoint_id(config):
            # The run forks from an older checkpoint. The newest one is recorded to detect writes of another run.
            newest, owner = self._newest(*at)
            fence.load(*at, newest, owner, None)
        found = super().get_tuple(config)
        if fence is not None and loads:
            record_loaded(fence, at, found)
            if found is not None and fence.claims and not get_checkpoint_id(config):
                self._record_owner(*at, found.checkpoint["id"], fence.owner)
        if found is not None:
            raise_checkpoint_id_floor(found.checkpoint["id"])
        return found

    def _store(self, config: RunnableConfig, statements: Sequence[Statement], new_id: str | None = None) -> None:
        """Check that the run may write, and execute recorded statements, on the writer thread.

        `new_id` is the id of the checkpoint that they store; None for a task's writes. Raises `SessionLostError`.
        """
        self._admit(config, new_id)
        for sql, rows in statements:
            self.conn.executemany(sql, rows)
        if new_id is None:
            return
        newest, _ = self._newest_in.pop(at_of(config), ("", ""))
        if newest is None or "" != newest < new_id:
            self._newest_in[at_of(config)] = new_id, ""

    def _admit(self, config: RunnableConfig, new_id: str | None = None) -> None:
        """Check that the run of a config may write, within the transaction of the write; graphs of other packages
        always may.

        `new_id` is the id of the checkpoint to write, or None for writes of a stored one. If the run resumes from the
        newest checkpoint, it is stored as the owner of that checkpoint. Raises `SessionLostError` if another run has
        written to the session since this run read it.
        """
        fence, at = fence_of(config), at_of(config)
        if fence is None:
            return
        # Within one transaction, only this thread writes, so that the newest checkpoint is read once for many jobs.
        if self._newest_as_of != self._writer.transaction:
            self._newest_as_of = self._writer.transaction
            self._newest_in.clear()
        if at not in self._newest_in:
            self._newest_in[at] = self._newest(*at)
        newest, owner = self._newest_in[at]
        if fence.admit(*at, newest, owner, [] if new_id is None else [new_id]) and newest is not None:
            [[writes]] = self.conn.execute(_COUNT_WRITES, (*at, newest)).fetchall()
            fence.check_untouched(*at, writes)
            self._record_owner(*at, newest, fence.owner)
            self._newest_in[at] = newest, fence.owner

    def _newest(self, thread_id: str, namespace: str) -> tuple[str | None, str]:
        """Return the id of the newest checkpoint of a namespace, and the run recorded as its owner; `(None, "")` if
        none.
        """
        found = self.conn.execute(_NEWEST, (OWNER, thread_id, namespace)).fetchone()
        return found or (None, "")

    def _record_owner(self, thread_id: str, namespace: str, checkpoint_id: str, owner: str) -> None:
        """Store a run as the owner of a checkpoint: a write with the task id `OWNER`, whose channel is the run's id
        `owner`.
        """
        kind, nothing = self.serde.dumps_typed(None)
        self.conn.execute(_RECORD_OWNER, (thread_id, namespace, checkpoint_id, OWNER, owner, kind, nothing))

    async def aprobe(self) -> None:
        """Check that the file accepts writes, with a write that is rolled back; that its disk has space; and that no
        page is damaged.

        Raises `sqlite3.Error` if it accepts none or is damaged, and `OSError` if its disk is full.
        """
        await call_in_thread(self._probe)
        await call_in_thread(check_space, self.database.parent)
        await call_in_thread(check_sqlite, self.database)

    def _probe(self) -> None:
        """Write and roll back, with the lock of the connection held."""
        # The lock is free between two batches of the writer thread, so no job shares the transaction.
        with self.lock:
            self.setup()
            probe_sqlite(self.conn, _PROBE)

    async def aclose(self) -> None:
        """Finish the queued jobs and end the thread; later requests raise `sqlite3.ProgrammingError`. The connection
        stays open.
        """
        await self._writer.aclose()


def _record_stored(config: RunnableConfig, checkpoint_id: str) -> None:
    """Record in the run's fence that a checkpoint is committed; nothing happens for other graphs."""
    if (fence := fence_of(config)) is not None:
        fence.store(*at_of(config), checkpoint_id)


@asynccontextmanager
async def open_sqlite_saver(path: Path, serde: SerializerProtocol) -> AsyncIterator[SharedSqliteSaver]:
    """Open the saver of a file over a connection of its own, and close it on exit after its queued writes are
    committed.

    A missing file is created. `serde` converts the stored values. Raises `ConfigError` if the file is not a database of
    sessions or cannot be opened, and `DatabaseLockedError` if another process keeps it locked.
    """
    # File access runs in threads: some servers refuse blocking calls in the event loop.
    await call_in_thread(check_sqlite_file, path)
    connection = await call_in_thread(lambda: LockWaitConnection(path, check_same_thread=False))
    try:
        saver = SharedSqliteSaver(await call_in_thread(path.resolve), connection, serde)
        try:
            yield saver
        finally:
            await saver.aclose()
    finally:
        await call_in_thread(connection.close)


_STORE_PROBE = "INSERT OR REPLACE INTO store (prefix, key, value) VALUES ('/ready', '', ?)"
"""The write of `SharedSqliteStore.aprobe`."""
_UNDER = "SELECT 1 FROM store WHERE prefix = ? LIMIT 1"
"""Whether a namespace of the Store has an item."""


class SharedSqliteStore(AsyncSqliteStore):
    """LangGraph's Store; cancellation does not interrupt its operations, and processes may create its tables
    concurrently.
    """

    async def setup(self) -> None:
        """Create missing tables; wait while another process creates them. Raises `sqlite3.Error` if the file cannot be
        written.
        """
        retry = Patience()
        while not self.is_setup:
            try:
                # Fetched completely: LangGraph cannot register its functions while a statement is active.
                await self.conn.execute_fetchall("PRAGMA journal_mode=WAL")
                async with self.lock:
                    await self.conn._execute(_make_tables, self.conn._conn, self.MIGRATIONS)  # type: ignore[no-untyped-call]  # no types
                await super().setup()
            except (sqlite3.OperationalError, sqlite3.IntegrityError) as error:
                await asyncio.sleep(retry.pause_s(error))

    async def is_empty(self, namespace: tuple[str, ...]) -> bool:
        """Whether a namespace has no items; items of longer namespaces do not count. One query, without a transaction.

        A cancellation interrupts the query, so callers that share the connection shield it.
        """
        if not self.is_setup:
            await self.setup()
        rows = await self._rows(_UNDER, (".".join(namespace),))
        return not rows

    async def aprobe(self) -> None:
        """Check that the file accepts writes, with a write that is rolled back; raise `sqlite3.Error` if it does
        not.
        """
        if not self.is_setup:
            await self.setup()
        await await_uninterrupted(self._probe())

    async def _probe(self) -> None:
        """Write and roll back, with the lock of the connection held."""
        async with self.lock:
            # As one call on the connection's thread; the public methods make one call per statement.
            await self.conn._execute(probe_sqlite, self.conn._conn, _STORE_PROBE)  # type: ignore[no-untyped-call]  # no types

    async def _rows(self, query: str, values: tuple[str, ...]) -> list[Any]:
        """Return the rows of a query, with the lock of the connection held."""
        # Locked: it must not read between the start of a batch and its first write (see `_reads_before_writes`).
        async with self.lock:
            return list(await self.conn.execute_fetchall(query, values))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations, and return their results in order; a cancellation takes effect afterwards.

        Reads are executed before writes, each in one transaction.
        """
        return await await_uninterrupted(self._reads_before_writes(list(ops)))

    async def _reads_before_writes(self, ops: list[Op]) -> list[Result]:
        """Execute the reads, then the writes, in two transactions; return the results in the order of `ops`."""
        # In two transactions: SQLite immediately refuses a write in a transaction that has read data which another
        # process has changed since.
        results: list[Result] = [None] * len(ops)
        for writes in (False, True):
            indices = [index for index, op in enumerate(ops) if isinstance(op, PutOp) is writes]
            if indices:
                found = await super().abatch([ops[index] for index in indices])
                for index, result in zip(indices, found, strict=True):
                    results[index] = result
        return results


@asynccontextmanager
async def open_sqlite_store(path: Path) -> AsyncIterator[SharedSqliteStore]:
    """Open the Store of a file over a connection of its own, and close it on exit after its queued operations have
    ended.

    A missing file is created. Raises `ConfigError` if the file is not a database of sessions or cannot be opened, and
    `DatabaseLockedError` if another process keeps it locked.
    """
    await call_in_thread(check_sqlite_file, path)
    async with aiosqlite.connect(path, isolation_level=None, factory=LockWaitConnection) as connection:
        store = SharedSqliteStore(connection)
        try:
            yield store
        finally:
            await stop_batching(store)


def _make_tables(connection: sqlite3.Connection, migrations: Sequence[str]) -> None:
    """Create or migrate the tables of the Store with LangGraph's `migrations`, in one transaction.

    LangGraph's own `setup` cannot continue after a kill in between. A column that exists already counts as migrated.
    Raises `sqlite3.Error`, and undoes the transaction.
    """
    if _version(connection) == len(migrations) - 1:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("CREATE TABLE IF NOT EXISTS store_migrations (v INTEGER PRIMARY KEY)")
        for version in range(_version(connection) + 1, len(migrations)):
            try:
                connection.execute(migrations[version])
            except sqlite3.OperationalError as error:
                # A process with LangGraph's `setup` was killed before it recorded the migration.
                if "duplicate column name" not in str(error):
                    raise
            connection.execute("INSERT INTO store_migrations (v) VALUES (?)", (version,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    """Return the number of the last migration that was applied; -1 before the first."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'store_migrations'").fetchall():
        return -1
    [[version]] = connection.execute("SELECT coalesce(max(v), -1) FROM store_migrations").fetchall()
    return int(version)
