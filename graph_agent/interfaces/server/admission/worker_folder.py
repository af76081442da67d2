"""Shares limits and the order to stop between the worker processes of one server, in a folder.

Requests and runs are counted in a small SQLite database of the folder. A *caller* is the name of an API key. A process
that cannot use the database counts its own requests alone.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from graph_agent.base.sqlite_connection import Patience
from graph_agent.interfaces.server.admission.gate import WINDOW_S, RequestLimits
from graph_agent.interfaces.server.settings import ServerSettings

logger = logging.getLogger("graph_agent.server.admission.worker_folder")

_AT_ONCE = "stop-at-once"

_warned: set[Path | None] = set()
"""The folders about which this process has logged a warning."""

_WAIT_S = 2.0
"""Seconds to wait for the transaction of another worker, which normally takes microseconds."""
_TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS under_way (
  kind TEXT, caller TEXT, worker INTEGER, requests INTEGER, PRIMARY KEY (kind, caller, worker)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS started (kind TEXT, caller TEXT, at REAL);
CREATE INDEX IF NOT EXISTS started_by ON started (kind, caller, at);
"""


def warn_of_folder(folder: Path | None, error: Exception) -> None:
    """Log a warning that this process counts requests and metrics for itself; once per process and folder.

    Args:
        folder: The folder of the server's workers; None if no folder could be created.
        error: Why the folder cannot be used.
    """
    if folder in _warned:
        return
    _warned.add(folder)
    name = "No temporary folder" if folder is None else f"The temporary folder {folder}"
    can = "can" if folder is None else "cannot"
    logger.warning(
        "%s %s be used (%s): each worker process counts requests and metrics for itself meanwhile. Free some space "
        "there, or set TMPDIR to another folder and start the server again.",
        name,
        can,
        error,
    )


def stop_at_once(shared: Path) -> None:
    """Order the workers that share a folder to stop without waiting for their runs.

    Raises `OSError` if the folder is not writable.
    """
    (shared / _AT_ONCE).touch()


def is_to_stop_at_once(shared: Path) -> bool:
    """Return whether `stop_at_once` was called for this folder."""
    return (shared / _AT_ONCE).exists()


def is_alive(process: int) -> bool:
    """Return whether a process with this id exists; True also for a process of another user."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class SharedLimits(RequestLimits):
    """Limits per caller that count the requests of all worker processes which share a folder.

    They are counted in a SQLite database of the folder. While it cannot be used, only the requests of this process are
    counted.

    Args:
        folder: The folder of the workers.
        kind: What is counted, e.g. `requests`. Each kind is counted separately.
        concurrent: Maximum active requests of one caller.
        per_minute: Maximum requests of one caller that start a run in any 60 seconds; None for no limit.
        clock: Returns the time in seconds. All processes must have the same clock, such as the monotonic clock of the
            machine.
    """

    def __init__(
        self,
        folder: Path,
        kind: str,
        concurrent: int,
        per_minute: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the database at once, so that the warning about an unusable folder is logged when the server starts, and
        not at a request.

        An unusable folder raises nothing: requests are then counted in this process alone, until it can be used.
        """
        super().__init__(concurrent, per_minute, clock)
        self._folder = folder
        self._kind = kind
        self._worker = os.getpid()
        self._db: sqlite3.Connection | None = None
        self._unpublished: set[str] = set()
        """Callers whose number of active requests in this process is not stored in the database yet."""
        # Opened now, so that an unusable folder is reported at the start.
        self._in_database(lambda db: None)

    def enter(self, caller: str, *, starts: bool = True) -> None:
        """Count a request in the database as active until `leave` is called.

        If the database cannot be used, a warning is logged, and the request is counted in this process alone. Raises
        `ProblemError` (`busy`) if a limit of the caller is reached; a request with `starts` counts per minute, too.
        """
        if self._in_database(partial(self._enter, caller, starts)):
            self._unpublished.clear()
            self._active[caller] = self._active.get(caller, 0) + 1
        else:
            super().enter(caller, starts=starts)
            self._unpublished.add(caller)

    def count(self, caller: str) -> None:
        """Count a run that starts later against the limit per minute, and not against that of parallel runs.

        Counts in this process alone if the database cannot be used, and nothing without a limit per minute.

        Raises `ProblemError` (`busy`) if the caller has started too many runs in the last minute.
        """
        if self._per_minute is not None and not self._in_database(partial(self._count, caller)):
            super().count(caller)

    def leave(self, caller: str) -> None:
        """Count the end of a request that `enter` has counted, in this process and in the database.

        If the database cannot be used, a later `enter` corrects the number there. Raises `KeyError` if the caller has
        no active request in this process.
        """
        super().leave(caller)
        if not self._in_database(partial(self._publish, caller)):
            self._unpublished.add(caller)

    def _in_database(self, work: Callable[[sqlite3.Connection], None]) -> bool:
        """Call a function in a transaction that no other worker can interleave; return True.

        If the database cannot be used, e.g. on a full disk, also within the function, log a warning and return False.
        Any other exception of the function, such as `ProblemError`, is raised. Both roll the transaction back.
        """
        try:
            if self._db is None:
                self._db = self._open()
            # Reading and counting must be one step: another worker could use the same free slot.
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

    def _enter(self, caller: str, starts: bool, db: sqlite3.Connection) -> None:
        """Check the limits of a caller in the database, and count a request there as active.

        Numbers of other callers that could not be stored before are stored first.

        Args:
            caller: Name of the caller.
            starts: Whether the request starts a run, so that it also counts against the limit per minute.
            db: The database, in a transaction.

        Raises:
            ProblemError: A limit is reached (`busy`).
        """
        # Earlier failures left numbers that are too high or too low for other callers.
        for other in self._unpublished:
            self._publish(other, db)
        rows = db.execute(
            "SELECT sum(requests) FROM under_way WHERE kind = ? AND caller = ?", (self._kind, caller)
        ).fetchone()
        self._check_concurrent(rows[0] or 0)
        if starts:
            self._count(caller, db)
        self._publish(caller, db, more=1)

    def _count(self, caller: str, db: sqlite3.Connection) -> None:
        """Record the start of a run in the database; raise `ProblemError` (`busy`) instead if the limit per minute is
        reached.

        Does nothing without such a limit. Starts of all callers that are older than a minute are deleted.
        """
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
        """Store the number of a caller's active requests in this process, plus `more`."""
        # The absolute number, so that the next write corrects one that failed.
        row = (self._kind, caller, self._worker, self._active.get(caller, 0) + more)
        db.execute("INSERT OR REPLACE INTO under_way VALUES (?, ?, ?, ?)", row)

    def _open(self) -> sqlite3.Connection:
        """Open the database of the folder, create its tables, and delete the counts of dead workers.

        Raises `sqlite3.Error` if that fails.
        """
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
        """Delete the counts, of this kind of limit, of workers that have ended.

        Counts under this process's own id are deleted, too: they are of an earlier process with the id.
        """
        workers = [worker for (worker,) in db.execute("SELECT DISTINCT worker FROM under_way")]
        for worker in workers:
            if not is_alive(worker) or worker == self._worker:
                db.execute("DELETE FROM under_way WHERE worker = ? AND kind = ?", (worker, self._kind))


def _make_tables(db: sqlite3.Connection) -> None:
    """Create the tables unless they exist.

    While another worker holds the lock, wait and try again; raise `sqlite3.OperationalError` if that takes too long, or
    the error has another cause.
    """
    patience, made = Patience(), False
    while not made:
        try:
            db.executescript(_TABLES)
            made = True
        except sqlite3.OperationalError as error:
            time.sleep(patience.pause_s(error))


def limits_of(settings: ServerSettings, shared: Path | None) -> tuple[RequestLimits, RequestLimits, RequestLimits]:
    """Return the limits per caller of three kinds: requests, event streams, and active runs of A2A and MCP. Only the
    first kind has a limit per minute.

    Args:
        settings: The settings of the server.
        shared: The folder of worker processes, which count together; None to count in this process alone.
    """
    requests = (settings.concurrent_requests, settings.requests_per_minute)
    if shared is None:
        return (
            RequestLimits(*requests),
            RequestLimits(settings.event_streams),
            RequestLimits(settings.concurrent_requests),
        )
    return (
        SharedLimits(shared, "requests", *requests),
        SharedLimits(shared, "streams", settings.event_streams),
        SharedLimits(shared, "tasks", settings.concurrent_requests),
    )
