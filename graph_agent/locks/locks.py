"""Locks sessions, so that each has one run at a time in this process and between processes.

Between processes, they are locks on bytes of a file or advisory locks in PostgreSQL. The operating system releases the
locks of a killed process. The lock file is in the folder of the SQLite database and stays empty. If the system has no
such locks (Windows), or the database is neither a file nor in PostgreSQL, a session is locked within its process only.
Any other failure to acquire a lock is an error: no run begins without its lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TypeVar

from graph_agent.locks.files import HAS_LOCKS, LockFile
from graph_agent.locks.postgres import AdvisoryLocks, PostgresAddress

T = TypeVar("T")

_RETRY_S = 0.002
"""Seconds before a second attempt: a process that checks whether a session is free holds its byte for much less."""
_REPLACED = "The lock file of the session was removed, and another process has locked the session since."


def guards_processes(place: Hashable) -> bool:
    """Whether the locks of a place also exclude other processes."""
    return isinstance(place, PostgresAddress) or (HAS_LOCKS and isinstance(place, Path))


class SessionLocks:
    """The locks of the sessions that this process runs. Thread-safe.

    Methods that may query a database return a future; for any other place it is done already.

    Args:
        lost: Called with a place, a session whose lock is lost, and the reason.
        still_holds: Called after a PostgreSQL lock was lost and acquired again, with the place, the session, the id of
            its newest checkpoint (None if there is none) and that checkpoint's owner; returns whether its run may
            continue.
    """

    def __init__(
        self,
        lost: Callable[[Hashable, str, str], None] = lambda place, session_id, why: None,
        still_holds: Callable[[Hashable, str, str | None, str], bool] = lambda *_: False,
    ) -> None:
        self._guard = threading.Lock()
        self._held: set[tuple[Hashable, str]] = set()
        self._files: dict[Path, LockFile] = {}
        self._databases: dict[PostgresAddress, AdvisoryLocks] = {}
        self._lost = lost
        self._still_holds = still_holds

    def take(self, place: Hashable, session_id: str) -> Future[bool]:
        """Acquire a session's lock for one run; False when another run has it, here or in another process.

        Raises:
            SessionLockError: When its file lock cannot be acquired for another reason.
        """
        with self._guard:
            if not self._take(place, session_id):
                return _done(False)
            if not isinstance(place, PostgresAddress):
                return _done(True)
            taken = self._database(place).take(session_id)
        taken.add_done_callback(lambda done: self._discard_refused(done, place, session_id))
        return taken

    def is_free(self, place: Hashable, session_id: str) -> Future[bool]:
        """Whether no run holds a session's lock, here or in another process.

        Raises:
            SessionLockError: When its file lock cannot be inspected.
        """
        with self._guard:
            if (place, session_id) in self._held:
                return _done(False)
            if isinstance(place, PostgresAddress):
                return self._database(place).is_free(session_id)
            return _done(not (HAS_LOCKS and isinstance(place, Path)) or self._is_free_byte(place, session_id))

    def confirmation(self, place: Hashable, *, at_once: bool = False) -> Callable[[], Future[None]] | None:
        """Return a function that verifies the locks held in a place, unless they were verified recently.

        When its future is done, `lost` was called for each session whose lock was lost. None for a place whose locks
        cannot be lost while the process lives.

        Args:
            at_once: Whether it verifies them also if they were verified recently.
        """
        if not isinstance(place, PostgresAddress):
            return None
        with self._guard:
            return partial(self._database(place).confirm, at_once=at_once)

    def give_back(self, place: Hashable, session_id: str) -> Future[None]:
        """Release a session's lock; when the future is done, other processes can acquire it."""
        with self._guard:
            self._give_back(place, session_id)
            return self._database(place).give_back(session_id) if isinstance(place, PostgresAddress) else _done(None)

    def _database(self, place: PostgresAddress) -> AdvisoryLocks:
        if place not in self._databases:
            self._databases[place] = AdvisoryLocks(
                place.conninfo,
                lambda session_id, why: self._lost(place, session_id, why),
                lambda session_id, newest, owner: self._still_holds(place, session_id, newest, owner),
            )
        return self._databases[place]

    def _discard_refused(self, taken: Future[bool], place: Hashable, session_id: str) -> None:
        if taken.exception() is not None or not taken.result():
            with self._guard:
                self._held.discard((place, session_id))

    def _take(self, place: Hashable, session_id: str) -> bool:
        if (place, session_id) in self._held:
            return False
        if HAS_LOCKS and isinstance(place, Path) and not self._take_byte(place, session_id):
            # Another process may hold the byte briefly in `is_free`.
            time.sleep(_RETRY_S)
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
        """Return the lock file of a database; if it was removed, a new one with the same locks."""
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
        file = self._file(place) if place in self._files else LockFile.open_read_only(place)
        if file is None:
            return True
        try:
            return file.is_free(session_id)
        finally:
            self._keep(place, file)

    def _keep(self, place: Path, file: LockFile) -> None:
        """Keep a file open while it has locks, else close it."""
        if file.locked:
            self._files[place] = file
        else:
            self._files.pop(place, None)
            file.close()

    def forget(self) -> None:
        """Reset it in a forked child: the parent's runs and locks are not the child's."""
        self._guard = threading.Lock()
        self._held.clear()
        for file in self._files.values():
            file.close()
        self._files.clear()
        for database in self._databases.values():
            database.abandon()
        self._databases.clear()


def _done(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future
