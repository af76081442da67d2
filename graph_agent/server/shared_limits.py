"""Limits that hold over all worker processes of one server, in a small database of theirs."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from graph_agent.server.limits import WINDOW_S, Limits
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
        self._kind = kind
        self._worker = os.getpid()
        # Not `.db`, which is what metrics are read from.
        self._db = sqlite3.connect(folder / "limits.sqlite", timeout=_WAIT_S, isolation_level=None)
        self._make_tables()
        self._forget_the_dead()

    def enter(self, caller: str) -> None:
        """As `Limits.enter`."""
        mine = (self._kind, caller)
        self._db.execute("BEGIN IMMEDIATE")
        try:
            rows = self._db.execute("SELECT sum(requests) FROM under_way WHERE kind = ? AND caller = ?", mine)
            self._check_concurrent(rows.fetchone()[0] or 0)
            if self._per_minute is not None:
                now = self._clock()
                self._db.execute("DELETE FROM begun WHERE kind = ? AND at <= ?", (self._kind, now - WINDOW_S))
                rows = self._db.execute("SELECT count(*), min(at) FROM begun WHERE kind = ? AND caller = ?", mine)
                begun, oldest = rows.fetchone()
                self._check_rate(begun, oldest, now)
                self._db.execute("INSERT INTO begun VALUES (?, ?, ?)", (*mine, now))
            self._db.execute(
                "INSERT INTO under_way VALUES (?, ?, ?, 1) "
                "ON CONFLICT (kind, caller, worker) DO UPDATE SET requests = requests + 1",
                (*mine, self._worker),
            )
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def leave(self, caller: str) -> None:
        """As `Limits.leave`."""
        self._db.execute(
            "UPDATE under_way SET requests = requests - 1 WHERE kind = ? AND caller = ? AND worker = ?",
            (self._kind, caller, self._worker),
        )

    def _make_tables(self) -> None:
        patience, made = Patience(), False
        while not made:
            try:
                self._db.executescript(_TABLES)
                made = True
            except sqlite3.OperationalError as error:
                time.sleep(patience.pause_s(error))

    def _forget_the_dead(self) -> None:
        """Take out what workers that were killed still hold; one with this process's own number is dead, too."""
        workers = [worker for (worker,) in self._db.execute("SELECT DISTINCT worker FROM under_way")]
        for worker in workers:
            if not is_alive(worker) or worker == self._worker:
                self._db.execute("DELETE FROM under_way WHERE worker = ? AND kind = ?", (worker, self._kind))


def is_alive(process: int) -> bool:
    """Whether there is a process of a number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
