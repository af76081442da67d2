"""A thread that works on one SQLite connection: errands in the order they come, one commit for what waits together."""

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

_MOST_TOGETHER = 64
"""Errands that share a commit at most, so that the first is not kept waiting."""

_Done = tuple[Future[Any], Any, BaseException | None]
"""Who waits for an errand, what it returned, and what it failed with; None where it did not fail."""


class _Errand(NamedTuple):
    work: Callable[[], Any]
    writes: bool
    future: Future[Any]


class _TransactionLostError(Exception):
    """SQLite has rolled back the whole transaction, as it does on a full disk."""

    def __init__(self, why: Exception) -> None:
        super().__init__(str(why))
        self.why = why


class Writer:
    """Carries out errands on a thread that lives from the first of them to `aclose`.

    Args:
        connection: Opened for any thread.
        lock: Held while it works, and by whoever else uses the connection.
        prepare: Called before each round, with the lock held.
    """

    def __init__(self, connection: sqlite3.Connection, lock: threading.Lock, prepare: Callable[[], None]) -> None:
        self._connection = connection
        self._lock = lock
        self._prepare = prepare
        self._errands: SimpleQueue[_Errand | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._closed = False
        self._refused: sqlite3.Error | None = None

    @property
    def is_at_work_here(self) -> bool:
        """Whether this is its thread."""
        return threading.current_thread() is self._thread

    async def do(self, errand: Callable[[], T], *, writes: bool = True) -> T:
        """Have an errand done, and what it has written committed; one that is cancelled in time is not begun.

        Args:
            errand: What to do.
            writes: Whether it writes, and so needs a transaction from its start.

        Raises:
            sqlite3.Error: When the transaction fails, or this is closed; nothing of the errand is stored then.
            Exception: What the errand raises; nothing of it is stored then either.
        """
        return await asyncio.wrap_future(self._submit(errand, writes=writes))

    def do_and_wait(self, errand: Callable[[], T], *, writes: bool = True) -> T:
        """As `do`, from any thread."""
        if self.is_at_work_here:
            return errand()
        return self._submit(errand, writes=writes).result()

    async def aclose(self) -> None:
        """End the thread, when all that waits is done; what is asked for afterwards is refused."""
        self._closed = True
        if self._thread is not None:
            self._errands.put(None)
            await asyncio.to_thread(self._thread.join)

    def _submit(self, errand: Callable[[], T], *, writes: bool) -> Future[T]:
        if self._closed:
            raise sqlite3.ProgrammingError("The database is closed: its saver was left. Open it anew.")
        future: Future[T] = Future()
        self._errands.put(_Errand(errand, writes, future))
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="graph-agent sqlite", daemon=True)
                self._thread.start()
        return future

    def _work(self) -> None:
        while (first := self._errands.get()) is not None:
            together = [first]
            while len(together) < _MOST_TOGETHER and not self._errands.empty():
                following = self._errands.get()
                if following is None:
                    self._errands.put(None)
                    break
                together.append(following)
            with self._lock:
                done = self._carry_out(together)
            # Nobody learns of a success before it is committed.
            for future, result, failure in done:
                future.set_result(result) if failure is None else future.set_exception(failure)

    def _carry_out(self, errands: list[_Errand]) -> list[_Done]:
        failed: list[_Done] = []
        done: list[_Done] = []
        begun = [errand for errand in errands if errand.future.set_running_or_notify_cancel()]
        self._refused = None
        try:
            self._prepare()
            for errand in begun:
                try:
                    done.append((errand.future, self._one(errand), None))
                except _TransactionLostError as lost:
                    # SQLite has rolled back what came before in the same transaction, too.
                    failed += [(future, None, lost.why) for future, _, _ in done]
                    failed.append((errand.future, None, lost.why))
                    done = []
                except Exception as error:  # noqa: BLE001 - whatever it is, it is that errand's alone
                    done.append((errand.future, None, error))
            self._connection.commit()
        except BaseException as error:  # noqa: BLE001 - whoever waits must hear that nothing is stored
            with suppress(sqlite3.Error):
                self._connection.rollback()
            known = {future for future, _, _ in failed}
            return failed + [(errand.future, None, error) for errand in begun if errand.future not in known]
        return failed + done

    def _one(self, errand: _Errand) -> Any:
        connection = self._connection
        within = connection.in_transaction
        try:
            if errand.writes and not within:
                self._begin()
                within = True
            if errand.writes:
                connection.execute("SAVEPOINT errand")
            result = errand.work()
            if errand.writes:
                connection.execute("RELEASE errand")
        except Exception as error:
            if errand.writes and connection.in_transaction:
                self._undo_errand()
            if within and not connection.in_transaction:
                raise _TransactionLostError(error) from error
            raise
        return result

    def _undo_errand(self) -> None:
        try:
            self._connection.execute("ROLLBACK TO errand")
            self._connection.execute("RELEASE errand")
        except sqlite3.Error:
            self._connection.rollback()

    def _begin(self) -> None:
        """Begin a transaction, waiting for other processes once in a round."""
        if self._refused is not None:
            raise self._refused
        try:
            # At once: a transaction that has read before it writes is refused when another process wrote meanwhile.
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._refused = error
            raise
