"""Locks sessions, so that each has one run at a time in this process and between processes.

A session is one LangGraph thread. Its place is the identity of the database that stores it: the `Path` of an SQLite
file, a `PostgresAddress`, or the `id` of any other saver.

Between processes, the locks are on bytes of a file or advisory locks in PostgreSQL. The operating system releases the
locks of a killed process. The lock file is in the folder of the SQLite database and stays empty. If the system has no
such locks (Windows), or the database is neither a file nor in PostgreSQL, a session is locked within its process only.
Any other failure to acquire a lock is an error: no run begins without its lock.

LangGraph's own SQLite and PostgreSQL savers do not publish their address, so their connection is queried once. Users
who pass such a saver as `checkpointer=`, or run one database under two kinds of savers, need it: without an identity,
each saver object would guard its sessions alone, and two processes could run one session.
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
from graph_agent.core.state.lock_files import HAS_LOCKS, LockFile
from graph_agent.core.state.postgres_locks import AdvisoryLocks, PostgresAddress

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver

T = TypeVar("T")

_RETRY_S = 0.002
"""Seconds before a second attempt: a process that checks whether a session is free holds its byte for much less."""
_REPLACED = "The lock file of the session was removed, and another process has locked the session since."


def guards_processes(place: Hashable) -> bool:
    """Whether the locks of sessions in a place also exclude other processes, not only runs of this one."""
    return isinstance(place, PostgresAddress) or (HAS_LOCKS and isinstance(place, Path))


class SessionLocks:
    """The locks of the sessions that this process runs, in all places. Thread-safe.

    Methods that may query a database return a future; for any other place it is done already.

    Args:
        lost: Called with a place, a session whose lock is lost, and the reason.
        still_holds: Called after a PostgreSQL lock was lost and acquired again, with the place, the session, the id of
            its newest checkpoint (None if there is none) and the run recorded as owner of that checkpoint (empty if
            none); returns whether the session's run may continue.
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
        """Acquire the lock of a session for one run; the future is False if another run has it, here or in another
        process.

        Does not wait for that run. Raises `SessionLockError` at once if the file lock cannot be acquired for another
        reason, and `ConfigError` if the SQLite file has hard links. The future raises `psycopg.OperationalError` if the
        database cannot be reached, and the lock is then not held.
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
        """Whether no run holds the lock of a session, in any process.

        Raises `SessionLockError` at once if a lock file cannot be inspected; the future raises
        `psycopg.OperationalError` if the database cannot be reached.
        """
        with self._guard:
            if (place, session_id) in self._held:
                return _done(False)
            if isinstance(place, PostgresAddress):
                return self._database(place).is_free(session_id)
            return _done(not (HAS_LOCKS and isinstance(place, Path)) or self._is_free_byte(place, session_id))

    def confirmation(self, place: Hashable, *, at_once: bool = False) -> Callable[[], Future[None]] | None:
        """Return a function that verifies the locks held in a place; None for a place whose locks cannot be lost.

        When the future that the function returns is done, `lost` was called for each session whose lock was lost. With
        `at_once`, it verifies them even if that was done recently. Only PostgreSQL locks can be lost while the process
        lives.
        """
        if not isinstance(place, PostgresAddress):
            return None
        with self._guard:
            return partial(self._database(place).confirm, at_once=at_once)

    def give_back(self, place: Hashable, session_id: str) -> Future[None]:
        """Release the lock of a session; when the future is done, other processes can acquire it.

        Nothing happens if the lock is not held.
        """
        with self._guard:
            self._give_back(place, session_id)
            return self._database(place).give_back(session_id) if isinstance(place, PostgresAddress) else _done(None)

    def _database(self, place: PostgresAddress) -> AdvisoryLocks:
        """Return the advisory locks (PostgreSQL's locks for applications) of a database, created at the first call."""
        if place not in self._databases:
            self._databases[place] = AdvisoryLocks(
                place.conninfo,
                lambda session_id, why: self._lost(place, session_id, why),
                lambda session_id, newest, owner: self._still_holds(place, session_id, newest, owner),
            )
        return self._databases[place]

    def _discard_refused(self, taken: Future[bool], place: Hashable, session_id: str) -> None:
        """Note that a session is not locked after all, if the database has refused it."""
        if taken.exception() is not None or not taken.result():
            with self._guard:
                self._held.discard((place, session_id))

    def _take(self, place: Hashable, session_id: str) -> bool:
        """Lock a session within this process, and its byte if its place is a file; False if either is taken.

        A byte that is taken is tried again after 2 ms. Raises `SessionLockError` if the lock file cannot be used, and
        `ConfigError` if the SQLite file has hard links.
        """
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
        """Release a session within this process, and its byte if its place is a file."""
        self._held.discard((place, session_id))
        if isinstance(place, Path) and (file := self._files.get(place)) is not None:
            file.unlock(session_id)
            self._keep(place, file)

    def _take_byte(self, place: Path, session_id: str) -> bool:
        """Lock the byte of a session; False if another process has it. `SessionLockError` if the lock file cannot be
        used.
        """
        file = self._file(place)
        try:
            return file.lock(session_id)
        finally:
            self._keep(place, file)

    def _file(self, place: Path) -> LockFile:
        """Return the lock file of a database, opened if it is not open; if it was removed, a new one with the same
        locks.

        Calls `lost` for each session that another process has locked in the new file. Raises the errors of
        `LockFile.open`.
        """
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
        """Whether no other process has locked the byte of a session; True without a lock file, which is not created.

        Raises `SessionLockError` if the file cannot be inspected.
        """
        file = self._file(place) if place in self._files else LockFile.open_read_only(place)
        if file is None:
            return True
        try:
            return file.is_free(session_id)
        finally:
            self._keep(place, file)

    def _keep(self, place: Path, file: LockFile) -> None:
        """Keep a lock file open while it has locks, else close it."""
        if file.locked:
            self._files[place] = file
        else:
            self._files.pop(place, None)
            file.close()

    def forget(self) -> None:
        """Drop all locks in a forked child, without releasing those of the parent: files and connections are closed
        here only.
        """
        self._guard = threading.Lock()
        self._held.clear()
        for file in self._files.values():
            file.close()
        self._files.clear()
        for database in self._databases.values():
            database.abandon()
        self._databases.clear()


def _done(value: T) -> Future[T]:
    """Return a future that has its result."""
    future: Future[T] = Future()
    future.set_result(value)
    return future


# By identity: a saver need not be hashable, and two equal savers may hold different threads.
_known: dict[int, Hashable] = {}
"""The `id` of a saver → its place, once it is known."""

_DATABASES = "PRAGMA database_list"


async def database_key(saver: BaseCheckpointSaver[Any]) -> Hashable:
    """Return the place of a saver: the `Path` of an SQLite file, a `PostgresAddress`, else the `id` of the saver.

    The connection of one of LangGraph's savers is queried once, on its event loop or, if it blocks, in a thread; the
    result is remembered while the saver lives. Raises the database's own error if that query fails.
    """
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
    """Remember the place of a saver while the saver lives, and return it; the saver's `id` if `database` is None."""
    place = database or id(saver)
    if id(saver) not in _known:
        # The next saver may get the same `id`.
        weakref.finalize(saver, _known.pop, id(saver), None).atexit = False
    _known[id(saver)] = place
    return place


def _driver(connection: Any) -> str:
    """Return the top-level package of a connection's class, such as `psycopg`."""
    # By name, as for `sqlite3` below: importing the package must not load a driver.
    return type(connection).__module__.partition(".")[0]


def _needs_its_loop(connection: Any) -> bool:
    """Whether a connection can only be used on its own event loop: one of `aiosqlite`, or an asynchronous pool of
    psycopg.
    """
    if _driver(connection) != "psycopg_pool":
        return _driver(connection) == "aiosqlite"
    from psycopg_pool import AsyncConnectionPool

    return isinstance(connection, AsyncConnectionPool)


def _database_of(saver: BaseCheckpointSaver[Any], connection: Any) -> Path | PostgresAddress | None:
    """Return the database of a saver that needs no event loop: the file of an SQLite one, the address of a PostgreSQL
    one.

    None if it is in memory or of another kind. The connection is queried; its errors are raised.

    Args:
        saver: The checkpointer.
        connection: Its connection or connection pool.
    """
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
    """Return the file of the main database in rows of `PRAGMA database_list`; None for a database in memory."""
    file = next((row[2] for row in rows if row[1] == "main"), "")
    return Path(file).resolve() if file else None


def _postgres_place(connection: Any) -> PostgresAddress:
    """Return the identity of the database of a psycopg connection, with a connection string for new connections."""
    from psycopg.conninfo import make_conninfo

    info = connection.info
    given = info.get_parameters()
    conninfo = make_conninfo(**{**given, "application_name": "graph-agent locks", "password": info.password or None})
    return PostgresAddress(info.host, info.port, info.dbname, info.user, given.get("options", ""), conninfo)
