"""One run at a time in a session: in this process by a table, between processes by locks on a file or in PostgreSQL.

The operating system lets go of a killed process's locks, so that nobody waits for the dead. The file lies beside the
SQLite database and stays empty. Where the system has no such locks (Windows), or the database is neither a file nor
PostgreSQL's, a session is guarded within its process only. A lock that cannot be taken for another reason is an error:
no run begins unguarded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from graph_agent.runs.lock_files import HAS_LOCKS, LockFile
from graph_agent.runs.postgres_locks import AdvisoryLocks, PostgresPlace

T = TypeVar("T")

_LOOK_S = 0.002
"""Seconds before a second try: a process that looks whether a session is free holds its byte for much less."""
_REPLACED = "The lock file of the session was removed, and another process has locked the session since."


def guards_processes(place: Hashable) -> bool:
    """Whether the locks of a place are seen by other processes, too."""
    return isinstance(place, PostgresPlace) or (HAS_LOCKS and isinstance(place, Path))


class SessionLocks:
    """The sessions that this process runs.

    What has to ask a database gives a future, which any other place has answered already.

    Args:
        lost: Called with a place, a session whose lock is lost, and why.
        still_holds: Called with a place, a session whose lock in PostgreSQL was lost and taken anew, the id of its
            newest checkpoint (None for none) and that checkpoint's owner; whether its run may go on.
    """

    def __init__(
        self,
        lost: Callable[[Hashable, str, str], None] = lambda place, session_id, why: None,
        still_holds: Callable[[Hashable, str, str | None, str], bool] = lambda *_: False,
    ) -> None:
        self._guard = threading.Lock()
        self._held: set[tuple[Hashable, str]] = set()
        self._files: dict[Path, LockFile] = {}
        self._databases: dict[PostgresPlace, AdvisoryLocks] = {}
        self._lost = lost
        self._still_holds = still_holds

    def take(self, place: Hashable, session_id: str) -> Future[bool]:
        """Take a session for one run; False when another run has it, here or in another process.

        Raises:
            SessionLockError: When its lock on a file cannot be taken for another reason.
        """
        with self._guard:
            if not self._take(place, session_id):
                return _now(False)
            if not isinstance(place, PostgresPlace):
                return _now(True)
            asked = self._database(place).take(session_id)
        asked.add_done_callback(lambda taken: self._settle(taken, place, session_id))
        return asked

    def is_free(self, place: Hashable, session_id: str) -> Future[bool]:
        """Whether no run has a session, here or in another process.

        Raises:
            SessionLockError: When its lock on a file cannot be inspected.
        """
        with self._guard:
            if (place, session_id) in self._held:
                return _now(False)
            if isinstance(place, PostgresPlace):
                return self._database(place).is_free(session_id)
            return _now(not (HAS_LOCKS and isinstance(place, Path)) or self._is_free_byte(place, session_id))

    def confirmation(self, place: Hashable) -> Callable[[], Future[None]] | None:
        """A function that verifies the locks held in a place, unless they were verified a moment ago.

        When its future is done, `lost` was called for each session whose lock was lost. None for a place whose locks
        last as long as their process.
        """
        if not isinstance(place, PostgresPlace):
            return None
        with self._guard:
            return self._database(place).confirm

    def give_back(self, place: Hashable, session_id: str) -> Future[None]:
        """Let the session go; other processes may have it when the future is done."""
        with self._guard:
            self._give_back(place, session_id)
            return self._database(place).give_back(session_id) if isinstance(place, PostgresPlace) else _now(None)

    def _database(self, place: PostgresPlace) -> AdvisoryLocks:
        if place not in self._databases:
            self._databases[place] = AdvisoryLocks(
                place.conninfo,
                lambda session_id, why: self._lost(place, session_id, why),
                lambda session_id, newest, owner: self._still_holds(place, session_id, newest, owner),
            )
        return self._databases[place]

    def _settle(self, taken: Future[bool], place: Hashable, session_id: str) -> None:
        if taken.exception() is not None or not taken.result():
            with self._guard:
                self._held.discard((place, session_id))

    def _take(self, place: Hashable, session_id: str) -> bool:
        if (place, session_id) in self._held:
            return False
        if HAS_LOCKS and isinstance(place, Path) and not self._take_byte(place, session_id):
            # Another process may hold it for as long as it takes to see that it is free.
            time.sleep(_LOOK_S)
            if not self._take_byte(place, session_id):
                return False
        self._held.add((place, session_id))
        return True

    def _give_back(self, place: Hashable, session_id: str) -> None:
        self._held.discard((place, session_id))
        if isinstance(place, Path) and (file := self._files.get(place)) is not None:
            file.unlock(session_id)
            self._keep(place, file)

    def _take_byte(self, place: Path, session_id: str) -> bool:
        file = self._file(place)
        try:
            return file.lock(session_id)
        finally:
            self._keep(place, file)

    def _file(self, place: Path) -> LockFile:
        """The lock file of a database; where it was removed, a new one with the same locks."""
        file = self._files.get(place) or LockFile.open(place)
        while not file.is_current:
            try:
                new = LockFile.open(place)
                for held in sorted(file.locked):
                    if not new.lock(held):
                        self._lost(place, held, _REPLACED)
            finally:
                self._files.pop(place, None)
                file.close()
            self._files[place] = file = new
        return file

    def _is_free_byte(self, place: Path, session_id: str) -> bool:
        file = self._file(place) if place in self._files else LockFile.open_to_look(place)
        if file is None:
            return True
        try:
            return file.is_free(session_id)
        finally:
            self._keep(place, file)

    def _keep(self, place: Path, file: LockFile) -> None:
        """Keep a file open while it is locked."""
        if file.locked:
            self._files[place] = file
        else:
            self._files.pop(place, None)
            file.close()

    def forget(self) -> None:
        """Begin anew, in a forked child: the parent's runs and locks are not the child's."""
        self._guard = threading.Lock()
        self._held.clear()
        for file in self._files.values():
            file.close()
        self._files.clear()
        for database in self._databases.values():
            database.abandon()
        self._databases.clear()


def _now(value: T) -> Future[T]:
    done: Future[T] = Future()
    done.set_result(value)
    return done
