"""A thread that works on one SQLite connection: errands in the order they come, one commit for what waits together."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_MOST_TOGETHER = 64
"""Errands that share a commit at most, so that the first is not kept waiting."""

_Errand = tuple[Callable[[], Any], Future[Any]]


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
        self._closed = False

    @property
    def is_at_work_here(self) -> bool:
        """Whether this is its thread."""
        return threading.current_thread() is self._thread

    async def do(self, errand: Callable[[], T]) -> T:
        """Have an errand done, and what it has written committed; one that is cancelled in time is not begun.

        Raises:
            sqlite3.Error: When the commit fails, or this is closed; nothing of the errand is stored then.
            Exception: What the errand raises.
        """
        if self._closed:
            raise sqlite3.ProgrammingError("The database is closed: its saver was left. Open it anew.")
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="graph-agent sqlite", daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._errands.put((errand, future))
        return await asyncio.wrap_future(future)

    async def aclose(self) -> None:
        """End the thread, when all that waits is done; what is asked for afterwards is refused."""
        self._closed = True
        if self._thread is not None:
            self._errands.put(None)
            await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        while (first := self._errands.get()) is not None:
            together = [first]
            while len(together) < _MOST_TOGETHER and not self._errands.empty():
                following = self._errands.get()
                if following is None:
                    self._errands.put(None)
                    break
                together.append(following)
            self._carry_out(together)

    def _carry_out(self, errands: list[_Errand]) -> None:
        done: list[tuple[Future[Any], Any, BaseException | None]] = []
        with self._lock:
            try:
                self._prepare()
                for errand, future in errands:
                    if not future.set_running_or_notify_cancel():
                        continue
                    try:
                        done.append((future, errand(), None))
                    except Exception as error:  # noqa: BLE001 - whatever it is, it is that errand's alone
                        done.append((future, None, error))
                self._connection.commit()
            except BaseException as error:  # noqa: BLE001 - whoever waits must hear that nothing is stored
                with suppress(sqlite3.Error):
                    self._connection.rollback()
                done = [(future, None, error) for _, future in errands if _is_awaited(future)]
        for future, result, failure in done:
            future.set_result(result) if failure is None else future.set_exception(failure)


def _is_awaited(future: Future[Any]) -> bool:
    return not future.cancelled() and (future.running() or future.set_running_or_notify_cancel())
