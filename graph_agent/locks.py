"""One run at a time in a session: in this process by a table, between processes by locks on a file or in PostgreSQL.

The operating system lets go of a killed process's locks, so that nobody waits for the dead. The file lies beside the
SQLite database and stays empty: each session is one byte of it, by a hash of its id. Where the system has no such locks
(Windows, some network file systems), or the database is neither a file nor PostgreSQL's, a session is guarded within
its process only.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from graph_agent.advisory_locks import AdvisoryLocks, PostgresPlace

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")

_HAS_LOCKS = sys.platform != "win32"

_LOOK_S = 0.002
"""Seconds before a second try: who only looks whether a session is free holds its byte for much less."""

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
"""How a file system says that it has no locks."""

SUFFIX = ".sessions-lock"
"""What the lock file's name adds to the database's."""


def guards_processes(place: Hashable) -> bool:
    """Whether the locks of a place are seen by other processes, too."""
    return isinstance(place, Path | PostgresPlace)


class SessionLocks:
    """The sessions that this process runs.

    What has to ask a database gives a future, which any other place has answered already.

    Args:
        lost: Told of a place and a session whose lock was lost, and is another process's now.
    """

    def __init__(self, lost: Callable[[Hashable, str], None] = lambda place, session_id: None) -> None:
        self._guard = threading.Lock()
        self._held: set[tuple[Hashable, str]] = set()
        self._files: dict[Path, _File] = {}
        self._databases: dict[PostgresPlace, AdvisoryLocks] = {}
        self._lost = lost

    def take(self, place: Hashable, session_id: str) -> Future[bool]:
        """Take a session for one run; False when another run has it, here or in another process."""
        with self._guard:
            if not self._take(place, session_id):
                return _now(False)
            if not isinstance(place, PostgresPlace):
                return _now(True)
            asked = self._database(place).take(session_id)
        asked.add_done_callback(lambda taken: self._settle(taken, place, session_id))
        return asked

    def is_free(self, place: Hashable, session_id: str) -> Future[bool]:
        """Whether no run has a session, here or in another process."""
        with self._guard:
            if isinstance(place, PostgresPlace):
                here = (place, session_id) in self._held
                return _now(False) if here else self._database(place).is_free(session_id)
            free = self._take(place, session_id)
            if free:
                self._give_back(place, session_id)
            return _now(free)

    def give_back(self, place: Hashable, session_id: str) -> Future[None]:
        """Let the session go; other processes may have it when the future is done."""
        with self._guard:
            self._give_back(place, session_id)
            return self._database(place).give_back(session_id) if isinstance(place, PostgresPlace) else _now(None)

    def _database(self, place: PostgresPlace) -> AdvisoryLocks:
        if place not in self._databases:
            self._databases[place] = AdvisoryLocks(place.conninfo, lambda session_id: self._lost(place, session_id))
        return self._databases[place]

    def _settle(self, taken: Future[bool], place: Hashable, session_id: str) -> None:
        if taken.exception() is not None or not taken.result():
            with self._guard:
                self._held.discard((place, session_id))

    def _take(self, place: Hashable, session_id: str) -> bool:
        if (place, session_id) in self._held:
            return False
        # Another process may hold it for as long as it takes to see that it is free.
        if isinstance(place, Path) and not self._take_byte(place, session_id):
            time.sleep(_LOOK_S)
            if not self._take_byte(place, session_id):
                return False
        self._held.add((place, session_id))
        return True

    def _give_back(self, place: Hashable, session_id: str) -> None:
        self._held.discard((place, session_id))
        if isinstance(place, Path) and (file := self._files.get(place)) is not None:
            file.unlock(session_id)
            if not file.locked:
                # The system drops every lock of a process on a file when it closes any descriptor of it.
                file.close()
                del self._files[place]

    def _take_byte(self, place: Path, session_id: str) -> bool:
        file = self._files.get(place)
        if file is None:
            file = _File.open(place)
            if file is None:
                return True
        taken = False
        try:
            taken = file.lock(session_id)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return True
        finally:
            if file.locked:
                self._files[place] = file
            else:
                file.close()
        return taken

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


class _File:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.locked: set[str] = set()
        """Ids of the sessions whose bytes this process has locked."""

    @classmethod
    def open(cls, database: Path) -> _File | None:
        """The lock file beside a database; None where there can be none."""
        if not _HAS_LOCKS:
            return None
        try:
            return cls(os.open(f"{database}{SUFFIX}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError:
            return None  # a folder that cannot be written: the database cannot be, either

    def lock(self, session_id: str) -> bool:
        try:
            _lock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, session_id)
        except BlockingIOError:
            return False
        except OSError as error:
            if isinstance(error, PermissionError):
                return False  # how some systems say that another process holds it
            raise
        self.locked.add(session_id)
        return True

    def unlock(self, session_id: str) -> None:
        if session_id in self.locked:
            _lock(self._descriptor, fcntl.LOCK_UN, session_id)
            self.locked.discard(session_id)

    def close(self) -> None:
        os.close(self._descriptor)


def _lock(descriptor: int, how: int, session_id: str) -> None:
    offset = int.from_bytes(hashlib.sha256(session_id.encode()).digest()[:8], "big") >> 2
    fcntl.lockf(descriptor, how, 1, offset)
