"""Locks of sessions in a PostgreSQL database: one connection of this process holds them all.

They are session-level advisory locks, so the server frees those of a killed process as soon as its connection is gone.
They belong to a server connection: a pooler between must pool by session (`pool_mode = session` in PgBouncer), or be
passed by.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, LiteralString, TypeVar

if TYPE_CHECKING:
    from psycopg import Connection

logger = logging.getLogger(__name__)

T = TypeVar("T")

WATCH_S = 1.0
"""Seconds between two looks whether the connection that holds locks is there still."""
IDLE_S = 5.0
"""Seconds after which a connection that holds nothing is closed."""

# A machine that vanishes sends no farewell; the server is to ask for it after ten seconds of silence.
_SETTINGS = (
    "SELECT set_config(name, given.setting, false) FROM pg_settings JOIN (VALUES ('tcp_keepalives_idle', '10'),"
    " ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3'), ('idle_session_timeout', '0'))"
    " AS given (name, setting) USING (name)"
)
_TAKE = "SELECT pg_try_advisory_lock(%(key)s)"
_GIVE_BACK = "SELECT pg_advisory_unlock(%(key)s)"
_HELD = (
    "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND classid = ((%(key)s::bigint >> 32) & 4294967295)::oid AND objid = (%(key)s::bigint & 4294967295)::oid"
)


@dataclass(frozen=True)
class PostgresPlace:
    """Where a PostgreSQL saver keeps its sessions, as far as a connection of it can tell."""

    host: str
    port: int
    database: str
    user: str
    options: str
    """What the connection sets, such as its search path."""
    conninfo: str = field(compare=False, repr=False)
    """How to connect there, the password included."""


class AdvisoryLocks:
    """The locks that this process holds in one database. Any thread may use it.

    Args:
        conninfo: How to connect.
        lost: Told of a session whose lock was lost with the connection, and is another process's now.
    """

    def __init__(self, conninfo: str, lost: Callable[[str], None]) -> None:
        self._conninfo = conninfo
        self._lost = lost
        self._guard = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        # From here on the thread's own.
        self._open: Connection[Any] | None = None
        self._schema = ""
        self._held: set[str] = set()

    def take(self, session_id: str) -> Future[bool]:
        """Take a session's lock; False when another process has it.

        Raises:
            psycopg.OperationalError: From the future, when the database cannot be reached.
        """
        return self._submit(lambda: self._take(session_id))

    def is_free(self, session_id: str) -> Future[bool]:
        """Whether nobody has a session's lock.

        Raises:
            psycopg.OperationalError: As `take`.
        """
        return self._submit(lambda: self._asked(_HELD, session_id) is None)

    def give_back(self, session_id: str) -> Future[None]:
        """Let a session's lock go; one that is lost is gone already, and no error."""
        return self._submit(lambda: self._give_back(session_id))

    def abandon(self) -> None:
        """Let go of the connection in a forked child, without a word to the server: it is the parent's."""
        if self._open is not None and not self._open.closed:
            # A copy of it in the child would keep the locks of a killed parent.
            os.close(self._open.fileno())
            _parents.append(self._open)

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        done: Future[T] = Future()

        def job() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it belongs to who asked
                done.set_exception(error)

        with self._guard:
            self._jobs.put(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="graph-agent-locks", daemon=True)
                self._thread.start()
        return done

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=WATCH_S if self._held else IDLE_S)
            except queue.Empty:
                if self._held:
                    self._watch()
                elif self._rest():
                    return
            else:
                job()
                # What a job holds on to, such as its answer, must not live until the next one.
                del job

    def _rest(self) -> bool:
        """Close the connection and end the thread, unless there is something to do by now."""
        with self._guard:
            if not self._jobs.empty():
                return False
            if self._open is not None:
                self._open.close()
                self._open = None
            self._thread = None
            return True

    def _watch(self) -> None:
        try:
            self._connected().execute("SELECT 1")
        except Exception as error:  # noqa: BLE001 - the next look may find the database well again
            logger.warning("The connection that holds the locks of %d sessions: %s", len(self._held), error)

    def _take(self, session_id: str) -> bool:
        taken = self._asked(_TAKE, session_id) == (True,)
        if taken:
            self._held.add(session_id)
        return taken

    def _give_back(self, session_id: str) -> None:
        self._held.discard(session_id)
        if self._open is None or self._open.closed:
            return
        try:
            self._open.execute(_GIVE_BACK, self._key(session_id))
        except Exception as error:  # noqa: BLE001 - without its connection the lock is gone, too
            logger.warning("The lock of session %r went with its connection: %s", session_id, error)

    def _asked(self, query: LiteralString, session_id: str) -> tuple[Any, ...] | None:
        """The first row of a query about one session; a connection that broke while it was idle is replaced."""
        from psycopg import OperationalError

        connection = self._connected()
        try:
            return connection.execute(query, self._key(session_id)).fetchone()
        except OperationalError:
            if not connection.closed:
                raise
        return self._connected().execute(query, self._key(session_id)).fetchone()

    def _connected(self) -> Connection[Any]:
        """The connection; a new one, with the locks taken anew, where the old one is gone."""
        if self._open is None or self._open.closed:
            connection = self._connect()
            try:
                for session_id in sorted(self._held):
                    if connection.execute(_TAKE, self._key(session_id)).fetchone() != (True,):
                        self._held.discard(session_id)
                        logger.error("Session %r is run by another process since the database was gone", session_id)
                        self._lost(session_id)
            except BaseException:
                # Kept, it would pass for one that holds them all.
                connection.close()
                raise
            self._open = connection
        return self._open

    def _connect(self) -> Connection[Any]:
        import psycopg

        connection = psycopg.connect(self._conninfo, autocommit=True)
        try:
            connection.execute(_SETTINGS)
            row = connection.execute("SELECT coalesce(current_schema(), ''), pg_backend_pid()").fetchone()
            assert row is not None
            self._schema, pid = row
            if pid != connection.info.backend_pid:
                logger.warning(
                    "There is a connection pooler before the PostgreSQL database. It must pool by session, or two "
                    "processes may run one session at the same time: the locks of sessions belong to a connection."
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _key(self, session_id: str) -> dict[str, int]:
        named = f"graph_agent/{self._schema}/{session_id}".encode("utf-8", "surrogatepass")
        return {"key": int.from_bytes(hashlib.sha256(named).digest()[:8], "big", signed=True)}


_parents: list[Connection[Any]] = []
"""Connections of the process that this one was forked from. They are kept, as their end would be noticed there."""
