"""Limits that hold over all worker processes of one server, in a small database of theirs."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from graph_agent.server.limits import WINDOW_S, Limits
from graph_agent.server.shared_folder import warn_of_folder
from graph_agent.sqlite_files import Patience

_WAIT_S = 2.0
"""Seconds to wait for another worker's entry, which takes some microseconds."""
_TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS under_way (
  kind TEXT, caller TEXT, worker INTEGER, requests INTEGER, PRIMARY KEY (kind, caller, worker)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS begun (kind TEXT, caller TEXT, at REAL);
CREATE INDEX IF NOT EXISTS begun_by ON begun (kind, caller, at);
"""


class SharedLimits(Limits):
    """As `Limits`, for the workers that share a folder.

    Args:
        folder: The folder.
        kind: What is limited; each kind is counted for itself.
        concurrent: As for `Limits`.
        per_minute: As for `Limits`.
        clock: Seconds that only grow, the same for all processes of this machine.
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
        """Callers whose requests under way in this process are not in the database as they are."""
        self._in_database(lambda db: None)

    def enter(self, caller: str) -> None:
        """As `Limits.enter`; over this process alone while the folder cannot be used."""
        if self._in_database(partial(self._enter, caller)):
            self._unpublished.clear()
            self._under_way[caller] = self._under_way.get(caller, 0) + 1
        else:
            super().enter(caller)
            self._unpublished.add(caller)

    def count(self, caller: str) -> None:
        """As `Limits.count`; over this process alone while the folder cannot be used."""
        if self._per_minute is not None and not self._in_database(partial(self._count, caller)):
            super().count(caller)

    def leave(self, caller: str) -> None:
        """As `Limits.leave`."""
        super().leave(caller)
        if not self._in_database(partial(self._publish, caller)):
            self._unpublished.add(caller)

    def _in_database(self, work: Callable[[sqlite3.Connection], None]) -> bool:
        """Do something in a transaction; False where the database cannot be used, e.g. on a full disk.

        Raises:
            ProblemError: As the work does.
        """
        try:
            if self._db is None:
                self._db = self._opened()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                work(self._db)
                self._db.execute("COMMIT")
            except BaseException:
                # SQLite has rolled back itself where the disk is full.
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
        db.execute("DELETE FROM begun WHERE kind = ? AND at <= ?", (self._kind, now - WINDOW_S))
        begun, oldest = db.execute("SELECT count(*), min(at) FROM begun WHERE kind = ? AND caller = ?", mine).fetchone()
        self._check_rate(begun, oldest, now)
        db.execute("INSERT INTO begun VALUES (?, ?, ?)", (*mine, now))

    def _publish(self, caller: str, db: sqlite3.Connection, more: int = 0) -> None:
        # The number itself and no difference: what could not be written once is right at the next time.
        row = (self._kind, caller, self._worker, self._under_way.get(caller, 0) + more)
        db.execute("INSERT OR REPLACE INTO under_way VALUES (?, ?, ?, ?)", row)

    def _opened(self) -> sqlite3.Connection:
        # Not `.db`, which is what metrics are read from.
        db = sqlite3.connect(self._folder / "limits.sqlite", timeout=_WAIT_S, isolation_level=None)
        try:
            _make_tables(db)
            self._forget_the_dead(db)
        except sqlite3.Error:
            db.close()
            raise
        return db

    def _forget_the_dead(self, db: sqlite3.Connection) -> None:
        """Take out what workers that were killed still hold; one with this process's own number is dead, too."""
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


def is_alive(process: int) -> bool:
    """Whether there is a process of a number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
