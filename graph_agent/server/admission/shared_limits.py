"""Counts requests and runs of all worker processes of one server, in a small SQLite database."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from graph_agent.checkpoints.sqlite_connection import Patience
from graph_agent.server.problems import ProblemError
from graph_agent.server.settings import ServerSettings
from graph_agent.server.shared_folder import is_alive, warn_of_folder

WINDOW_S = 60.0
"""Length in seconds of the sliding window for the limit per minute."""


class Limits:
    """Active requests and requests of the last minute, per caller, in this process.

    Args:
        concurrent: Maximum concurrent requests of one caller.
        per_minute: Maximum requests of one caller in any 60 seconds; None for no limit.
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self, concurrent: int, per_minute: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._concurrent = concurrent
        self._per_minute = per_minute
        self._clock = clock
        self._active: dict[str, int] = {}
        self._started: dict[str, deque[float]] = {}

    def enter(self, caller: str) -> None:
        """Count the start of a request, which must be ended with `leave`.

        Raises:
            ProblemError: If the caller has too many active requests, or has started too many.
        """
        self._check_concurrent(self._active.get(caller, 0))
        self._count_start(caller)
        self._active[caller] = self._active.get(caller, 0) + 1

    def count(self, caller: str) -> None:
        """Count an input that runs later, such as a follow-up, against the rate only.

        Raises:
            ProblemError: If the caller has started too many requests.
        """
        self._count_start(caller)

    def leave(self, caller: str) -> None:
        """Count the end of a request."""
        self._active[caller] -= 1
        if not self._active[caller]:
            del self._active[caller]

    def _count_start(self, caller: str) -> None:
        if self._per_minute is None:
            return
        started = self._started.setdefault(caller, deque())
        now = self._clock()
        while started and started[0] <= now - WINDOW_S:
            started.popleft()
        self._check_rate(len(started), started[0] if started else None, now)
        started.append(now)

    @contextmanager
    def slot(self, caller: str) -> Iterator[None]:
        """Count one request for the duration of the context.

        Raises:
            ProblemError: Same as for `enter`.
        """
        self.enter(caller)
        try:
            yield
        finally:
            self.leave(caller)

    def _check_concurrent(self, active: int) -> None:
        if active >= self._concurrent:
            raise ProblemError(
                "busy", f"Too many requests at the same time; this key may have {self._concurrent}.", retry_after_s=1
            )

    def _check_rate(self, started: int, oldest: float | None, now: float) -> None:
        if self._per_minute is not None and oldest is not None and started >= self._per_minute:
            raise ProblemError(
                "busy",
                f"Too many requests; this key may send {self._per_minute} a minute.",
                retry_after_s=oldest + WINDOW_S - now,
            )


_WAIT_S = 2.0
"""Seconds to wait for the transaction of another worker, which takes some microseconds."""
_TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS under_way (
  kind TEXT, caller TEXT, worker INTEGER, requests INTEGER, PRIMARY KEY (kind, caller, worker)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS started (kind TEXT, caller TEXT, at REAL);
CREATE INDEX IF NOT EXISTS started_by ON started (kind, caller, at);
"""


class SharedLimits(Limits):
    """`Limits` over all worker processes that share a folder.

    Args:
        kind: The limited resource; each kind is counted separately.
        concurrent: Same as for `Limits`.
        per_minute: Same as for `Limits`.
        clock: Monotonic clock in seconds, the same for all processes of this machine.
    """

    def __init__(
        self,
        folder: Path,
        kind: str,
        concurrent: int,
        per_minute: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(concurrent, per_minute, clock)
        self._folder = folder
        self._kind = kind
        self._worker = os.getpid()
        self._db: sqlite3.Connection | None = None
        self._unpublished: set[str] = set()
        """Callers whose number of active requests in this process is not up to date in the database."""
        self._in_database(lambda db: None)

    def enter(self, caller: str) -> None:
        """Behaves like `Limits.enter`; for this process alone while the folder is unusable."""
        if self._in_database(partial(self._enter, caller)):
            self._unpublished.clear()
            self._active[caller] = self._active.get(caller, 0) + 1
        else:
            super().enter(caller)
            self._unpublished.add(caller)

    def count(self, caller: str) -> None:
        """Behaves like `Limits.count`; for this process alone while the folder is unusable."""
        if self._per_minute is not None and not self._in_database(partial(self._count, caller)):
            super().count(caller)

    def leave(self, caller: str) -> None:
        """Behaves like `Limits.leave`."""
        super().leave(caller)
        if not self._in_database(partial(self._publish, caller)):
            self._unpublished.add(caller)

    def _in_database(self, work: Callable[[sqlite3.Connection], None]) -> bool:
        """Run a function in a transaction; return False if the database is unusable, e.g. on a full disk.

        Raises:
            ProblemError: Raised by the function.
        """
        try:
            if self._db is None:
                self._db = self._open()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                work(self._db)
                self._db.execute("COMMIT")
            except BaseException:
                # On a full disk SQLite has already rolled back.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            warn_of_folder(self._folder, error)
            return False
        return True

    def _enter(self, caller: str, db: sqlite3.Connection) -> None:
        for other in self._unpublished:
            self._publish(other, db)
        rows = db.execute(
            "SELECT sum(requests) FROM under_way WHERE kind = ? AND caller = ?", (self._kind, caller)
        ).fetchone()
        self._check_concurrent(rows[0] or 0)
        self._count(caller, db)
        self._publish(caller, db, more=1)

    def _count(self, caller: str, db: sqlite3.Connection) -> None:
        if self._per_minute is None:
            return
        mine, now = (self._kind, caller), self._clock()
        db.execute("DELETE FROM started WHERE kind = ? AND at <= ?", (self._kind, now - WINDOW_S))
        started, oldest = db.execute(
            "SELECT count(*), min(at) FROM started WHERE kind = ? AND caller = ?", mine
        ).fetchone()
        self._check_rate(started, oldest, now)
        db.execute("INSERT INTO started VALUES (?, ?, ?)", (*mine, now))

    def _publish(self, caller: str, db: sqlite3.Connection, more: int = 0) -> None:
        # The absolute number, so that the next write corrects one that failed.
        row = (self._kind, caller, self._worker, self._active.get(caller, 0) + more)
        db.execute("INSERT OR REPLACE INTO under_way VALUES (?, ?, ?, ?)", row)

    def _open(self) -> sqlite3.Connection:
        # Not `.db`: prometheus_client reads all `*.db` files of the folder.
        db = sqlite3.connect(self._folder / "limits.sqlite", timeout=_WAIT_S, isolation_level=None)
        try:
            _make_tables(db)
            self._remove_dead_workers(db)
        except sqlite3.Error:
            db.close()
            raise
        return db

    def _remove_dead_workers(self, db: sqlite3.Connection) -> None:
        """Delete the counts of killed workers; an entry with this process's own id is from a dead one too."""
        workers = [worker for (worker,) in db.execute("SELECT DISTINCT worker FROM under_way")]
        for worker in workers:
            if not is_alive(worker) or worker == self._worker:
                db.execute("DELETE FROM under_way WHERE worker = ? AND kind = ?", (worker, self._kind))


def _make_tables(db: sqlite3.Connection) -> None:
    patience, made = Patience(), False
    while not made:
        try:
            db.executescript(_TABLES)
            made = True
        except sqlite3.OperationalError as error:
            time.sleep(patience.pause_s(error))


def limits_of(settings: ServerSettings, shared: Path | None) -> tuple[Limits, Limits, Limits]:
    """Return the limits per key of requests, of event streams, and of active A2A tasks.

    Args:
        settings: The limits' values.
        shared: The folder of the processes that share the limits; None for this process alone.
    """
    requests = (settings.concurrent_requests, settings.requests_per_minute)
    if shared is None:
        return Limits(*requests), Limits(settings.event_streams), Limits(settings.concurrent_requests)
    return (
        SharedLimits(shared, "requests", *requests),
        SharedLimits(shared, "streams", settings.event_streams),
        SharedLimits(shared, "tasks", settings.concurrent_requests),
    )
