"""Runs jobs on one SQLite connection in a thread, in order of arrival, with one commit per batch of queued jobs.

A job is a function that uses the connection. A deferred job is one that no caller waits for: it belongs to the run of
an agent (`DeferredWrites`), which receives its error.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from langgraph.checkpoint.sqlite import SqliteSaver

from graph_agent.core.state.fence import DeferredWrites
from graph_agent.storage.checkpoints.fenced_writes import StatementRecorder

T = TypeVar("T")

MAX_DELAY_S = 0.005
"""Maximum seconds between the deferral of a job and the start of its batch."""
_MAX_BATCH = 64
"""Maximum jobs per commit, to limit the delay of the first job."""


class SqliteRecorder(StatementRecorder, SqliteSaver):
    """LangGraph's saver, which records the statements of a write instead of executing them."""

    def cursor(self, transaction: bool = True) -> Any:
        """Return the recorder itself as the cursor; `transaction` has no effect."""
        return self


@dataclass(slots=True, eq=False)
class _Job:
    """A queued function and its outcome."""

    work: Callable[[], Any]
    """The function, called on the writer's thread."""
    writes: bool
    """Whether the function needs a transaction from its start."""
    future: Future[Any] | asyncio.Future[Any] | None
    """Receives the result or the error; None for a deferred job."""
    group: DeferredWrites | None
    """The run whose writes fail from this one on if it fails; None if there is none."""
    committed: Callable[[], None] | None
    """Called on the thread after the commit; None if nothing is to be called."""
    result: Any = None
    """What the function returned."""
    error: BaseException | None = None
    """Why the job failed; None if it has not."""

    def run(self) -> None:
        """Call the function and record its result; raise its error, or that of an earlier job of the group."""
        if self.group is not None and self.group.error is not None:
            raise self.group.error
        self.result = self.work()

    def fail(self, error: BaseException) -> None:
        """Record an error, which later jobs of the group then raise."""
        self.error = error
        if self.group is not None:
            self.group.fail(error)


class _TransactionLostError(Exception):
    """Raised inside the writer when SQLite has rolled back the whole transaction, as it does on a full disk."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Writer:
    """Runs jobs on a thread that lives from the first job to `aclose`.

    Args:
        connection: The connection, which the thread and other code share.
        lock: Held during each batch; the other users of the connection hold it, too.
        prepare: Called before each batch, with the lock held; creates missing tables.
    """

    def __init__(self, connection: sqlite3.Connection, lock: threading.Lock, prepare: Callable[[], None]) -> None:
        self._connection = connection
        self._lock = lock
        self._prepare = prepare
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._urgent = threading.Event()
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._closed = False
        self._begin_error: sqlite3.Error | None = None
        self.transaction = 0
        """Changes whenever a transaction begins or a part of it is undone; a job may cache what it reads until then."""

    @property
    def is_writer_thread(self) -> bool:
        """Whether the current thread is the writer's thread."""
        return threading.current_thread() is self._thread

    async def run(
        self,
        job: Callable[[], T],
        *,
        writes: bool = True,
        group: DeferredWrites | None = None,
        committed: Callable[[], None] | None = None,
    ) -> T:
        """Run a job on the thread, commit its writes with those of its batch, and return its result.

        If the caller is cancelled before the job starts, it does not run, unless it has a `group`; after that it is
        committed all the same, and the caller does not wait. A job may run twice, if another job of its batch fails.

        Args:
            job: The function to run; it uses the connection.
            writes: Whether the job needs a transaction from its start.
            group: The run that the job belongs to: if the job fails, later jobs of the run fail with its error. None
                for no run.
            committed: Called on the thread after the commit; None if nothing is to be called.

        Raises:
            sqlite3.Error: If the transaction fails or the writer is closed.
            Exception: What the job raised, or an earlier job of its `group`. Nothing of the job is then stored.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._submit(_Job(job, writes, future, group, committed))
        return await future

    def run_blocking(
        self, job: Callable[[], T], *, writes: bool = True, committed: Callable[[], None] | None = None
    ) -> T:
        """Run a job on the thread, block until its writes are committed, and return its result; callable from any
        thread.

        Called by another job, on the writer's thread, it runs the job at once as a part of that one. `writes` is
        whether the job needs a transaction from its start; `committed`, unless it is None, is called on the thread
        after the commit, but not for a job within another one. Raises `sqlite3.Error` if the transaction fails or the
        writer is closed, and what the job raises.
        """
        if self.is_writer_thread:
            return job()
        future: Future[T] = Future()
        self._submit(_Job(job, writes, future, None, committed))
        return future.result()

    def defer(self, job: Callable[[], Any], group: DeferredWrites, committed: Callable[[], None] | None = None) -> None:
        """Queue a job that writes, and return; its batch starts with the next job that is awaited, or after
        `MAX_DELAY_S`.

        Args:
            job: The function to run; it uses the connection.
            group: The run that the job belongs to, which receives its error.
            committed: Called on the thread after the commit; None if nothing is to be called.

        Raises:
            sqlite3.Error: If the writer is closed.
            Exception: What an earlier job of the group raised; this job is then not queued.
        """
        group.queue(self.flush)
        self._submit(_Job(job, True, None, group, committed))

    async def flush(self) -> None:
        """Wait until all jobs that were queued before have ended; their errors are not raised here."""
        await self.run(_nothing, writes=False)

    async def aclose(self) -> None:
        """Finish the queued jobs, and end the thread; later jobs raise `sqlite3.ProgrammingError`."""
        self._closed = True
        if self._thread is not None:
            self._jobs.put(None)
            self._urgent.set()
            await asyncio.to_thread(self._thread.join)

    def _submit(self, job: _Job) -> None:
        """Queue a job, and wake the thread if a caller waits for it or a batch is full; start the thread for the first
        job.

        Raises `sqlite3.ProgrammingError` if the writer is closed.
        """
        if self._closed:
            raise sqlite3.ProgrammingError("The database is closed, since its saver was closed. Open a new saver.")
        self._jobs.put(job)
        # After `put`: the thread clears the event before it takes the queue's jobs.
        if job.future is not None or self._jobs.qsize() >= _MAX_BATCH:
            self._urgent.set()
        if self._thread is None:
            with self._start_lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run_thread, name="graph-agent sqlite", daemon=True)
                    self._thread.start()

    def _run_thread(self) -> None:
        """Run batches of at most `_MAX_BATCH` queued jobs until `aclose`, and report their outcomes after each commit.

        The lock is held during a batch. Cancelled jobs are skipped (see `_starts`).
        """
        while (first := self._next()) is not None:
            self._urgent.clear()
            batch = [first]
            while len(batch) < _MAX_BATCH and not self._jobs.empty():
                following = self._jobs.get()
                if following is None:
                    self._jobs.put(None)
                    self._urgent.set()
                    break
                batch.append(following)
            else:
                if len(batch) == _MAX_BATCH:
                    self._urgent.set()  # the rest of the queue may contain a job that waits
            jobs = [job for job in batch if _starts(job)]
            with self._lock:
                self._run_batch(jobs)
            # Futures resolve after the commit only.
            _report(jobs)

    def _next(self) -> _Job | None:
        """Return the next job when its batch is due; None to end the thread.

        A batch is due at once if a caller waits for one of its jobs, else `MAX_DELAY_S` seconds after its first job.
        Blocks while the queue is empty.
        """
        if not self._urgent.wait(MAX_DELAY_S) and self._jobs.empty():
            # Idle: the next job wakes the thread. Otherwise a deferred job does not, as it waits for an urgent one.
            first = self._jobs.get()
            if first is not None and first.future is None:
                self._urgent.wait(MAX_DELAY_S)
            return first
        return self._jobs.get()

    def _run_batch(self, jobs: list[_Job]) -> None:
        """Run jobs and commit; record the outcome of each in the job.

        If one of several fails, all are rolled back and run again one by one, so that only the failed one is undone; a
        job may therefore run twice. If `prepare` or the commit fails, every job without an error of its own fails with
        that error.
        """
        self._begin_error = None
        try:
            self._prepare()
            if not self._run_together(jobs):
                self._run_apart(jobs)
            self._connection.commit()
        except BaseException as error:  # noqa: BLE001 - every waiting caller must get the error, as nothing is stored
            with suppress(sqlite3.Error):
                self._connection.rollback()
            for job in jobs:
                if job.error is None:
                    job.fail(error)

    def _run_together(self, jobs: list[_Job]) -> bool:
        """Run all jobs; if one fails, undo all and return False, so that they are run again apart.

        A single job that fails keeps its error, and True is returned.
        """
        try:
            for job in jobs:
                if job.writes and not self._connection.in_transaction:
                    self._begin()
                job.run()
        except Exception as error:  # noqa: BLE001 - a job may raise anything; a batch of several is run again
            with suppress(sqlite3.Error):
                self._connection.rollback()
            if len(jobs) > 1:
                return False
            jobs[0].fail(error)
        return True

    def _run_apart(self, jobs: list[_Job]) -> None:
        """Run jobs such that a failed one is undone alone; the others stay in the transaction.

        If SQLite rolls back the whole transaction, the jobs before the failed one fail, too.
        """
        done: list[_Job] = []
        for job in jobs:
            try:
                self._run_job(job)
                done.append(job)
            except _TransactionLostError as lost:
                # SQLite has rolled back the earlier jobs of the transaction, too.
                for undone in (*done, job):
                    undone.fail(lost.cause)
                done = []
            except Exception as error:  # noqa: BLE001 - any error of a job is that job's result only
                job.fail(error)

    def _run_job(self, job: _Job) -> None:
        """Run one job, within a savepoint if it writes, and undo it if it fails; raise its error.

        Raises `_TransactionLostError` if SQLite has rolled back the earlier jobs of the transaction, too.
        """
        connection = self._connection
        in_transaction = connection.in_transaction
        try:
            if job.writes and not in_transaction:
                self._begin()
                in_transaction = True
            if job.writes:
                connection.execute("SAVEPOINT job")
            job.run()
            if job.writes:
                connection.execute("RELEASE job")
        except Exception as error:
            if job.writes and connection.in_transaction:
                self._undo_job()
            if in_transaction and not connection.in_transaction:
                raise _TransactionLostError(error) from error
            raise

    def _undo_job(self) -> None:
        """Undo the writes since the savepoint of a job, or the whole transaction if that is refused.

        `transaction` gets a new number, so that what was read in the transaction counts as outdated.
        """
        self.transaction += 1
        try:
            self._connection.execute("ROLLBACK TO job")
            self._connection.execute("RELEASE job")
        except sqlite3.Error:
            self._connection.rollback()

    def _begin(self) -> None:
        """Begin a transaction; wait for other processes at most once per batch.

        Raises the `sqlite3.Error` of an earlier attempt in the same batch without a new one.
        """
        if self._begin_error is not None:
            raise self._begin_error
        self.transaction += 1
        try:
            # IMMEDIATE: a transaction that reads before it writes is refused if another process writes in between.
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._begin_error = error
            raise


def _nothing() -> None:
    """Do nothing."""


def _starts(job: _Job) -> bool:
    """Whether a job is to run. A cancelled job is skipped, unless it has a group, whose later jobs may depend on it."""
    if job.group is not None:
        return True
    if isinstance(job.future, Future):
        return job.future.set_running_or_notify_cancel()
    return job.future is None or not job.future.cancelled()


def _report(jobs: list[_Job]) -> None:
    """Call `committed` of each job that succeeded, and set the outcomes of all jobs in their futures.

    A deferred job has no future; its group counts it as ended. Futures of an event loop are set by one call on that
    loop; those of a closed loop are skipped.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
    for job in jobs:
        if job.error is None and job.committed is not None:
            job.committed()
        if job.future is None:
            if job.group is not None:
                job.group.finish()
        elif isinstance(job.future, Future):
            job.future.set_result(job.result) if job.error is None else job.future.set_exception(job.error)
        else:
            by_loop.setdefault(job.future.get_loop(), []).append(job)
    for loop, waiting in by_loop.items():
        with suppress(RuntimeError):  # a closed loop has no callers left
            loop.call_soon_threadsafe(_resolve, waiting)


def _resolve(jobs: list[_Job]) -> None:
    """Set the results or errors of jobs in their futures, on the event loop of the futures; cancelled ones are
    skipped.
    """
    for job in jobs:
        assert isinstance(job.future, asyncio.Future)
        if job.future.done():
            continue  # its caller was cancelled
        job.future.set_result(job.result) if job.error is None else job.future.set_exception(job.error)
