"""Locks sessions, so that each has one run at a time in this process and between processes.

Between processes, they are locks on bytes of a file or advisory locks in PostgreSQL. The operating system releases the
locks of a killed process. The lock file is in the folder of the SQLite database and stays empty. If the system has no
such locks (Windows), or the database is neither a file nor in PostgreSQL, a session is locked within its process only.
Any other failure to acquire a lock is an error: no run begins without its lock.

A session has one run at a time within one database. LangGraph's own SQLite and PostgreSQL savers do not publish their
address, so their connection is queried once. Users who pass such a saver as `checkpointer=`, or run one database under
two kinds of savers, need it: without an identity, each saver object would guard its sessions alone, and two processes
could run one session.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from graph_agent.base._internal.saver_loops import awaited_on, foreign_loop
from graph_agent.base._internal.sync_bridge import call_in_thread
from graph_agent.storage.locks.lock_files import HAS_LOCKS, LockFile
from graph_agent.storage.locks.postgres import AdvisoryLocks, PostgresAddress

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver

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

        Raises `SessionLockError` when its file lock cannot be acquired for another reason.
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
        """Whether no run holds a session's lock, in any process; `SessionLockError` when that cannot be inspected."""
        with self._guard:
            if (place, session_id) in self._held:
                return _done(False)
            if isinstance(place, PostgresAddress):
                return self._database(place).is_free(session_id)
            return _done(not (HAS_LOCKS and isinstance(place, Path)) or self._is_free_byte(place, session_id))

    def confirmation(self, place: Hashable, *, at_once: bool = False) -> Callable[[], Future[None]] | None:
        """Return a function that verifies the locks held in a place; `at_once` also if that was done recently.

        When its future is done, `lost` was called for each session whose lock was lost. None for a place whose locks
        cannot be lost while the process lives.
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


# By identity: a saver need not be hashable, and two equal savers may hold different threads.
_known: dict[int, Hashable] = {}

_DATABASES = "PRAGMA database_list"


async def database_key(saver: BaseCheckpointSaver[Any]) -> Hashable:
    """Return a database's identity: an SQLite file's `Path`, a `PostgresAddress`, else the saver's `id`."""
    if (known := _known.get(id(saver))) is not None:
        return known
    connection: Any = getattr(saver, "conn", None)
    if not _needs_its_loop(connection):
        if _driver(connection).startswith("psycopg"):
            return _remember(saver, await call_in_thread(_database_of, saver, connection))
        return _remember(saver, _database_of(saver, connection))
    if (loop := foreign_loop(saver)) is not None:
        return await awaited_on(loop, database_key(saver))
    if _driver(connection) == "aiosqlite":
        await saver.setup()  # type: ignore[attr-defined]  # the SQLite saver's own: opens its connection where needed
        async with connection.execute(_DATABASES) as cursor:
            return _remember(saver, _path(await cursor.fetchall()))
    async with connection.connection() as lent:
        return _remember(saver, _postgres_place(lent))


def _remember(saver: BaseCheckpointSaver[Any], database: Path | PostgresAddress | None) -> Hashable:
    place = database or id(saver)
    if id(saver) not in _known:
        # The next saver may get the same `id`.
        weakref.finalize(saver, _known.pop, id(saver), None).atexit = False
    _known[id(saver)] = place
    return place


def _driver(connection: Any) -> str:
    # By name, as for `sqlite3` below: importing the package must not load a driver.
    return type(connection).__module__.partition(".")[0]


def _needs_its_loop(connection: Any) -> bool:
    if _driver(connection) != "psycopg_pool":
        return _driver(connection) == "aiosqlite"
    from psycopg_pool import AsyncConnectionPool

    return isinstance(connection, AsyncConnectionPool)


def _database_of(saver: BaseCheckpointSaver[Any], connection: Any) -> Path | PostgresAddress | None:
    file = getattr(saver, "database", None)
    if isinstance(file, Path):
        return file  # of `open_saver`: its connection may be busy on its thread
    if any(kind.__module__ == "sqlite3" for kind in type(connection).__mro__):
        return _path(connection.execute(_DATABASES).fetchall())
    if _driver(connection) == "psycopg_pool":
        with connection.connection() as lent:
            return _postgres_place(lent)
    return _postgres_place(connection) if _driver(connection) == "psycopg" else None


def _path(rows: Any) -> Path | None:
    """The main database's file; None for one in memory."""
    file = next((row[2] for row in rows if row[1] == "main"), "")
    return Path(file).resolve() if file else None


def _postgres_place(connection: Any) -> PostgresAddress:
    from psycopg.conninfo import make_conninfo

    info = connection.info
    given = info.get_parameters()
    conninfo = make_conninfo(**{**given, "application_name": "graph-agent locks", "password": info.password or None})
    return PostgresAddress(info.host, info.port, info.dbname, info.user, given.get("options", ""), conninfo)
