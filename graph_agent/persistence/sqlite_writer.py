"""A thread that runs jobs on one SQLite connection in order of arrival, with one commit per batch of queued jobs."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

_MAX_BATCH = 64
"""Maximum jobs per commit, to limit the delay of the first job."""

_JobResult = tuple[Future[Any], Any, BaseException | None]
"""A job's future, its result, and its error; None for no error."""


class _Job(NamedTuple):
    work: Callable[[], Any]
    writes: bool
    future: Future[Any]


class _TransactionLostError(Exception):
    """SQLite has rolled back the whole transaction, as it does on a full disk."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Writer:
    """Runs jobs on a thread that lives from the first job to `aclose`.

    Args:
        connection: A connection usable from any thread.
        lock: Held during each batch; other users of the connection must hold it too.
        prepare: Called before each batch, with the lock held.
    """

    def __init__(self, connection: sqlite3.Connection, lock: threading.Lock, prepare: Callable[[], None]) -> None:
        self._connection = connection
        self._lock = lock
        self._prepare = prepare
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._closed = False
        self._begin_error: sqlite3.Error | None = None

    @property
    def is_writer_thread(self) -> bool:
        """Whether the current thread is the writer's thread."""
        return threading.current_thread() is self._thread

    async def run(self, job: Callable[[], T], *, writes: bool = True) -> T:
        """Run a job on the thread and commit its writes; a job that is cancelled before its start does not run.

        Args:
            job: The work to do.
            writes: Whether it writes, and so needs a transaction from its start.

        Raises:
            sqlite3.Error: If the transaction fails or the writer is closed; nothing of the job is stored.
            Exception: The job's own error; nothing of the job is stored.
        """
        return await asyncio.wrap_future(self._submit(job, writes=writes))

    def run_blocking(self, job: Callable[[], T], *, writes: bool = True) -> T:
        """As `run`, from any thread, blocking."""
        if self.is_writer_thread:
            return job()
        return self._submit(job, writes=writes).result()

    async def aclose(self) -> None:
        """Finish the queued jobs and end the thread; later jobs are refused."""
        self._closed = True
        if self._thread is not None:
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join)

    def _submit(self, job: Callable[[], T], *, writes: bool) -> Future[T]:
        if self._closed:
            raise sqlite3.ProgrammingError("The database is closed, since its saver was closed. Open a new saver.")
        future: Future[T] = Future()
        self._jobs.put(_Job(job, writes, future))
        with self._start_lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_thread, name="graph-agent sqlite", daemon=True)
                self._thread.start()
        return future

    def _run_thread(self) -> None:
        while (first := self._jobs.get()) is not None:
            batch = [first]
            while len(batch) < _MAX_BATCH and not self._jobs.empty():
                following = self._jobs.get()
                if following is None:
                    self._jobs.put(None)
                    break
                batch.append(following)
            with self._lock:
                outcomes = self._run_batch(batch)
            # Futures resolve after the commit only.
            for future, result, error in outcomes:
                future.set_result(result) if error is None else future.set_exception(error)

    def _run_batch(self, batch: list[_Job]) -> list[_JobResult]:
        failed: list[_JobResult] = []
        done: list[_JobResult] = []
        jobs = [job for job in batch if job.future.set_running_or_notify_cancel()]
        self._begin_error = None
        try:
            self._prepare()
            for job in jobs:
                try:
                    done.append((job.future, self._run_job(job), None))
                except _TransactionLostError as lost:
                    # SQLite has rolled back the earlier jobs of the transaction, too.
                    failed += [(future, None, lost.cause) for future, _, _ in done]
                    failed.append((job.future, None, lost.cause))
                    done = []
                except Exception as error:  # noqa: BLE001 - any error of a job is that job's result only
                    done.append((job.future, None, error))
            self._connection.commit()
        except BaseException as error:  # noqa: BLE001 - every waiting caller must get the error, as nothing is stored
            with suppress(sqlite3.Error):
                self._connection.rollback()
            known = {future for future, _, _ in failed}
            return failed + [(job.future, None, error) for job in jobs if job.future not in known]
        return failed + done

    def _run_job(self, job: _Job) -> Any:
        connection = self._connection
        in_transaction = connection.in_transaction
        try:
            if job.writes and not in_transaction:
                self._begin()
                in_transaction = True
            if job.writes:
                connection.execute("SAVEPOINT job")
            result = job.work()
            if job.writes:
                connection.execute("RELEASE job")
        except Exception as error:
            if job.writes and connection.in_transaction:
                self._undo_job()
            if in_transaction and not connection.in_transaction:
                raise _TransactionLostError(error) from error
            raise
        return result

    def _undo_job(self) -> None:
        try:
            self._connection.execute("ROLLBACK TO job")
            self._connection.execute("RELEASE job")
        except sqlite3.Error:
            self._connection.rollback()

    def _begin(self) -> None:
        """Begin a transaction; wait for other processes at most once per batch."""
        if self._begin_error is not None:
            raise self._begin_error
        try:
            # IMMEDIATE: a transaction that reads before it writes is refused if another process writes in between.
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._begin_error = error
            raise
