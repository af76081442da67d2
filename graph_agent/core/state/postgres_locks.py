"""Locks sessions in PostgreSQL by advisory locks, all held by one connection of this process.

A session is one LangGraph thread. The locks are session-level locks of the server, so the server releases those of a
killed process as soon as its connection is closed. The server also closes a connection without a query for `LEASE_S`
seconds, so the locks of a process that is paused, or of a machine that vanished, are released after that time. A
running process sends a query every `WATCH_S` seconds.

Locks belong to a server connection: a connection pooler must pool by session (`pool_mode = session` in PgBouncer) or be
bypassed.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from graph_agent.core.state.fence import OWNER
from graph_agent.core.state.postgres_query import first_row

if TYPE_CHECKING:
    from psycopg import Connection


logger = logging.getLogger("graph_agent.locks.postgres")

T = TypeVar("T")

LEASE_S = 15
"""Seconds without a query after which the server closes a connection that holds locks. It exceeds the time within which
a process that cannot reach the server stops its runs: `WATCH_S`, the timeout of a query, and `RECONNECT_S`."""
WATCH_S = 1.0
"""Seconds between two checks of the connection that holds locks."""
FRESH_S = 3.0
"""Seconds that such a check stays valid. A process that was paused for longer checks again before it begins a tool
call.
"""
IDLE_S = 5.0
"""Seconds after which a connection without locks is closed."""
RECONNECT_S = 3
"""Seconds within which a broken connection must be replaced, or its sessions are lost."""

# PostgreSQL before version 14 has no `idle_session_timeout`. There, keepalives end the connection of a machine that
# vanished after 25 s; the locks of a paused process are held until it continues or is killed.
_SETTINGS = (
    "SELECT set_config(name, given.setting, false) FROM pg_settings JOIN (VALUES ('tcp_keepalives_idle', '10'),"
    " ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3'), ('idle_session_timeout', $1))"
    " AS given (name, setting) USING (name)"
)
_SCHEMA_AND_PID = "SELECT coalesce(current_schema(), ''), pg_backend_pid()"
_TAKE = "SELECT pg_try_advisory_lock($1::bigint)"
_RELEASE = "SELECT pg_advisory_unlock($1::bigint)"
_HELD = (
    "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND classid = (($1::bigint >> 32) & 4294967295)::oid AND objid = ($1::bigint & 4294967295)::oid"
)
# From LangGraph's tables, in a thread's root namespace.
_NEWEST = (
    "SELECT c.checkpoint_id, coalesce((SELECT w.channel FROM checkpoint_writes w WHERE w.thread_id = c.thread_id"
    " AND w.checkpoint_ns = '' AND w.checkpoint_id = c.checkpoint_id AND w.task_id = $2 LIMIT 1), '')"
    " FROM checkpoints c WHERE c.thread_id = $1 AND c.checkpoint_ns = ''"
    " ORDER BY c.checkpoint_id DESC LIMIT 1"
)
_GONE = "The connection to the database that held the lock of session {!r} is lost, and with it the lock: {}."
_TAKEN = "The database's connection was lost, and another process has locked session {!r} since."
_CONTINUED = (
    "The database's connection was lost for a moment, and another process may have continued session {!r} meanwhile."
)
_WHAT_NOW = " This run was stopped; read the session, and send the input again if it is not in its history."

_parents: list[Connection[Any]] = []
"""Connections of the parent process. They are kept, because their finalizer would close the parent's connection."""


@dataclass(frozen=True)
class PostgresAddress:
    """Identity of a PostgreSQL database, read from a connection."""

    host: str
    port: int
    database: str
    user: str
    options: str
    """The connection's `options`, such as its search path."""
    conninfo: str = field(compare=False, repr=False)
    """The connection string, password included."""


class AdvisoryLocks:
    """The locks that this process holds in one database. Thread-safe; the futures are done on a thread of this object.

    That thread monitors the connection that holds the locks. When it breaks, they are at once acquired again over a new
    one. A session is lost if that fails, if another process has its lock by then, or if its newest checkpoint shows
    that another process has run it meanwhile.

    Args:
        conninfo: The connection string, in libpq's syntax.
        lost: Called on the thread with a session whose lock is lost, and the reason.
        still_holds: Called on the thread with a session whose lock was acquired again, the id of its newest checkpoint
            (None if there is none) and the run recorded as owner of that checkpoint (empty if none); returns whether
            this process may continue its run.
    """

    def __init__(
        self, conninfo: str, lost: Callable[[str, str], None], still_holds: Callable[[str, str | None, str], bool]
    ) -> None:
        self._conninfo = conninfo
        self._lost = lost
        self._still_holds = still_holds
        self._guard = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # A byte wakes the thread, which waits for jobs and for the end of its connection.
        self._waking, self._wake = socket.socketpair()
        self._waking.setblocking(False)
        self._wake.setblocking(False)
        self._thread: threading.Thread | None = None
        self._verified_at = -math.inf
        # The attributes below are used by the thread only.
        self._open: Connection[Any] | None = None
        self._schema = ""
        self._held: set[str] = set()

    def take(self, session_id: str) -> Future[bool]:
        """Acquire the lock of a session, without waiting for its holder; the future is False if another process has it.

        The future raises `psycopg.OperationalError` if the database cannot be reached. A lock that this connection
        holds already is granted again, so callers keep a set of their own.
        """
        return self._submit(lambda: self._take(session_id))

    def is_free(self, session_id: str) -> Future[bool]:
        """Whether no process, this one included, has the lock of a session; takes no lock.

        The `concurrent.futures.Future` raises `psycopg.OperationalError` if the database cannot be reached.
        """
        return self._submit(lambda: self._query(_HELD, session_id) is None)

    def give_back(self, session_id: str) -> Future[None]:
        """Release the lock of a session; nothing happens if it was lost. The future never fails."""
        return self._submit(lambda: self._give_back(session_id))

    def confirm(self, *, at_once: bool = False) -> Future[None]:
        """Verify the held locks, unless they were verified within the last `FRESH_S` seconds or `at_once` is set.

        When the future is done, `lost` was called for each lost lock; the future never fails.
        """
        if not at_once and time.monotonic() - self._verified_at < FRESH_S:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        return self._submit(self._check_connection)

    def abandon(self) -> None:
        """Close the connection in a forked child without a message to the server, as the parent still uses it."""
        if self._open is not None and not self._open.closed:
            # An open copy in the child would keep the locks of a killed parent.
            os.close(self._open.fileno())
            _parents.append(self._open)

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue work for the thread, start the thread if it has ended, and return the future of the result; an
        exception of the work is raised by the future.
        """
        done: Future[T] = Future()

        def job() -> None:
            """Do the work, and pass its result or error to the future."""
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised by the future
                done.set_exception(error)

        with self._guard:
            self._jobs.put(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_jobs, name="graph-agent-locks", daemon=True)
                self._thread.start()
        with suppress(BlockingIOError):
            self._wake.send(b"\0")  # a full buffer wakes it as well
        return done

    def _run_jobs(self) -> None:
        """Run queued jobs, and check the connection between them while locks are held.

        After `IDLE_S` seconds without locks and jobs, the connection is closed and the thread ends.
        """
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                if self._is_woken():
                    continue
                if self._held:
                    self._check_connection()
                elif self._close_idle():
                    return
            else:
                job()
                # Release the job's references, such as its result, before waiting for the next one.
                del job

    def _is_woken(self) -> bool:
        """Wait for a job, data on the connection with locks, or the time of its next check; return whether there may be
        a job.

        The wait takes `WATCH_S` seconds at most while locks are held, and `IDLE_S` otherwise.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._waking, selectors.EVENT_READ)
            if self._held and self._open is not None and not self._open.closed:
                # The server sends nothing here unless it closes the connection.
                selector.register(self._open.fileno(), selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(WATCH_S if self._held else IDLE_S)]
        if self._waking not in ready:
            return False
        with suppress(BlockingIOError):
            self._waking.recv(4096)
        return True

    def _close_idle(self) -> bool:
        """Close the connection and end the thread, unless a job is queued; return whether it has ended."""
        with self._guard:
            if not self._jobs.empty():
                return False
            if self._open is not None:
                self._open.close()
                self._open = None
            self._thread = None
            return True

    def _check_connection(self) -> None:
        """Send a query over the connection that holds locks, and replace the connection if that fails; never raises.

        Does nothing while no lock is held. If it cannot be replaced either, the locks of all sessions are reported as
        lost.
        """
        if not self._held:
            return
        sent_at = time.monotonic()
        try:
            first_row(self._connected(), "SELECT 1")
            self._verified_at = sent_at
        except Exception as error:  # noqa: BLE001 - after any error the connection is replaced
            if self._open is not None:
                self._open.close()
            # If the connection cannot be replaced, `_connected` reports each session as lost.
            with suppress(Exception):
                if self._held:
                    self._connected(error)

    def _take(self, session_id: str) -> bool:
        """Acquire the lock of a session over the connection; False if another process has it. Raises as `_query`."""
        taken = self._query(_TAKE, session_id) == ["t"]
        if taken:
            self._held.add(session_id)
        return taken

    def _give_back(self, session_id: str) -> None:
        """Release the lock of a session; if that fails, close the connection, which releases all of its locks, and log
        it.
        """
        self._held.discard(session_id)
        if self._open is None or self._open.closed:
            return
        try:
            first_row(self._open, _RELEASE, self._key(session_id))
        except Exception as error:  # noqa: BLE001 - closing the connection releases the lock, too
            self._open.close()
            logger.warning("The lock of session %r was released by closing its connection: %s", session_id, error)

    def _query(self, query: str, session_id: str) -> list[str] | None:
        """Return the first row of a query about the lock of one session; None without a row.

        If the connection broke while idle, it is replaced once, and the query sent again. Raises
        `psycopg.OperationalError` if that fails, too, or for an error on an open connection.
        """
        from psycopg import OperationalError

        connection = self._connected()
        try:
            return first_row(connection, query, self._key(session_id))
        except OperationalError:
            if not connection.closed:
                raise
        return first_row(self._connected(), query, self._key(session_id))

    def _connected(self, broken_by: Exception | None = None) -> Connection[Any]:
        """Return the connection; if it is closed, a new one over which all held locks are acquired again.

        Calls `lost` for each session whose run cannot continue. If no connection can be opened, it is called for all of
        them, and the error is raised.

        Args:
            broken_by: What broke the old connection, for the reason; None if unknown.
        """
        if self._open is None or self._open.closed:
            self._open = None
            connection: Connection[Any] | None = None
            sent_at = time.monotonic()
            try:
                connection = self._connect()
                for session_id in sorted(self._held):
                    if why := self._reacquire(connection, session_id):
                        self._report_lost(session_id, why)
            except BaseException as error:
                if connection is not None:
                    # If kept, it would count as the holder of all locks.
                    connection.close()
                reasons = [" ".join(str(each).split()) for each in (broken_by, error) if each is not None]
                for session_id in sorted(self._held):
                    self._report_lost(session_id, _GONE.format(session_id, "; ".join(reasons)))
                raise
            self._open = connection
            self._verified_at = sent_at
        return self._open

    def _reacquire(self, connection: Connection[Any], session_id: str) -> str:
        """Acquire a lock again over a new connection; return why its run cannot continue, as text; empty if it can.

        It cannot if another process has the lock, or has continued the session meanwhile; the lock is then not held.
        Raises `psycopg.OperationalError` if a query fails.
        """
        if first_row(connection, _TAKE, self._key(session_id)) != ["t"]:
            return _TAKEN.format(session_id)
        newest, owner = first_row(connection, _NEWEST, session_id, OWNER) or (None, "")
        if self._still_holds(session_id, newest, owner):
            return ""
        first_row(connection, _RELEASE, self._key(session_id))
        return _CONTINUED.format(session_id)

    def _report_lost(self, session_id: str, why: str) -> None:
        """Forget the lock of a session, log an error with the reason `why`, and call `lost`."""
        self._held.discard(session_id)
        logger.error("%s", why)
        self._lost(session_id, why + _WHAT_NOW)

    def _connect(self) -> Connection[Any]:
        """Open a connection with the timeouts of this module, and store its schema; log a warning if a connection
        pooler is in between.

        Raises `psycopg.OperationalError` if the database cannot be reached; within `RECONNECT_S` seconds while locks
        are held. If a later step fails, the connection is closed.
        """
        import psycopg

        # The configured timeout is for the first connection; while sessions run, it must be replaced quickly.
        limit: dict[str, Any] = {"connect_timeout": RECONNECT_S} if self._held else {}
        connection = psycopg.connect(self._conninfo, autocommit=True, **limit)
        try:
            first_row(connection, _SETTINGS, f"{LEASE_S}s")
            self._schema, pid = first_row(connection, _SCHEMA_AND_PID) or ("", "")
            if pid != str(connection.info.backend_pid):
                logger.warning(
                    "There is a connection pooler in front of the PostgreSQL database. It must pool by session, or two "
                    "processes may run one session at the same time: the locks of sessions belong to a connection."
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _key(self, session_id: str) -> str:
        """Return the key of the lock of a session, as a decimal text of a signed number of 64 bits. It depends on the
        schema.
        """
        name = f"graph_agent/{self._schema}/{session_id}".encode("utf-8", "surrogatepass")
        return str(int.from_bytes(hashlib.sha256(name).digest()[:8], "big", signed=True))
