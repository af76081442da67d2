"""Locks of sessions in a PostgreSQL database: one connection of this process holds them all.

They are session-level advisory locks, so the server frees those of a killed process as soon as its connection is gone.
They belong to a server connection: a pooler between must pool by session (`pool_mode = session` in PgBouncer), or be
passed by.
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

from graph_agent.runs.checkpoint_fence import OWNER
from graph_agent.runs.postgres_query import first_row

if TYPE_CHECKING:
    from psycopg import Connection

logger = logging.getLogger(__name__)

T = TypeVar("T")

WATCH_S = 1.0
"""Seconds between two looks whether the connection that holds locks is there still."""
FRESH_S = 3.0
"""Seconds that such a look counts; a process that was paused for longer looks again before it begins a call."""
IDLE_S = 5.0
"""Seconds after which a connection that holds nothing is closed."""
RECONNECT_S = 3
"""Seconds that a lost connection may take to be replaced before its sessions count as lost."""

# A machine that vanishes sends no farewell; the server is to ask for it after ten seconds of silence, and frees its
# locks after 25. A process that is cut off stops its runs after 14 at most, before another can have them.
_SETTINGS = (
    "SELECT set_config(name, given.setting, false) FROM pg_settings JOIN (VALUES ('tcp_keepalives_idle', '10'),"
    " ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3'), ('idle_session_timeout', '0'))"
    " AS given (name, setting) USING (name)"
)
_WHERE = "SELECT coalesce(current_schema(), ''), pg_backend_pid()"
_TAKE = "SELECT pg_try_advisory_lock($1::bigint)"
_GIVE_BACK = "SELECT pg_advisory_unlock($1::bigint)"
_HELD = (
    "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND classid = (($1::bigint >> 32) & 4294967295)::oid AND objid = ($1::bigint & 4294967295)::oid"
)
# In LangGraph's tables, of a thread's root namespace.
_NEWEST = (
    "SELECT c.checkpoint_id, coalesce((SELECT w.channel FROM checkpoint_writes w WHERE w.thread_id = c.thread_id"
    " AND w.checkpoint_ns = '' AND w.checkpoint_id = c.checkpoint_id AND w.task_id = $2 LIMIT 1), '')"
    " FROM checkpoints c WHERE c.thread_id = $1 AND c.checkpoint_ns = ''"
    " ORDER BY c.checkpoint_id DESC LIMIT 1"
)
_GONE = "The connection to the database that held the lock of session {!r} is lost, and with it the lock: {}."
_TAKEN = "The database's connection was lost, and another process has locked session {!r} since."
_CONTINUED = (
    "The database's connection was lost for a moment, and another process has continued session {!r} meanwhile."
)
_WHAT_NOW = " This run was stopped; read the session, and send the input again if it is not in its history."


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

    The connection that holds them is watched. When it breaks, the locks are taken anew over another one at once. A
    session is lost when that fails, when another process has the lock by then, or when its newest checkpoint shows that
    another process had it meanwhile.

    Args:
        conninfo: How to connect.
        lost: Called with a session whose lock is lost, and why.
        still_holds: Called with a session whose lock was taken anew, the id of its newest checkpoint (None for none)
            and that checkpoint's owner (empty for none); whether this process may go on with it.
    """

    def __init__(
        self, conninfo: str, lost: Callable[[str, str], None], still_holds: Callable[[str, str | None, str], bool]
    ) -> None:
        self._conninfo = conninfo
        self._lost = lost
        self._still_holds = still_holds
        self._guard = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # A byte in it wakes the thread, which waits for jobs and for the end of its connection.
        self._waking, self._wake = socket.socketpair()
        self._waking.setblocking(False)
        self._wake.setblocking(False)
        self._thread: threading.Thread | None = None
        self._verified_at = -math.inf
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

    def confirm(self) -> Future[None]:
        """Verify the locks that are held, unless that was done a moment ago.

        The future is done when `lost` was called for those that are lost; it never fails.
        """
        if time.monotonic() - self._verified_at < FRESH_S:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        return self._submit(self._watch)

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
        with suppress(BlockingIOError):
            self._wake.send(b"\0")  # a full buffer wakes it as well
        return done

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                if self._is_woken():
                    continue
                if self._held:
                    self._watch()
                elif self._rest():
                    return
            else:
                job()
                # What a job holds on to, such as its answer, must not live until the next one.
                del job

    def _is_woken(self) -> bool:
        """Wait for a job, for something on the connection that holds locks, or for the next look at it.

        Returns:
            Whether there may be a job.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._waking, selectors.EVENT_READ)
            if self._held and self._open is not None and not self._open.closed:
                # Nothing is to come from the server but its farewell.
                selector.register(self._open.fileno(), selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(WATCH_S if self._held else IDLE_S)]
        if self._waking not in ready:
            return False
        with suppress(BlockingIOError):
            self._waking.recv(4096)
        return True

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
        if not self._held:
            return
        asked_at = time.monotonic()
        try:
            first_row(self._connected(), "SELECT 1")
            self._verified_at = asked_at
        except Exception as error:  # noqa: BLE001 - whatever it is, the connection is replaced
            if self._open is not None:
                self._open.close()
            # Each session is reported as lost where the connection cannot be replaced.
            with suppress(Exception):
                if self._held:
                    self._connected(error)

    def _take(self, session_id: str) -> bool:
        taken = self._asked(_TAKE, session_id) == ["t"]
        if taken:
            self._held.add(session_id)
        return taken

    def _give_back(self, session_id: str) -> None:
        self._held.discard(session_id)
        if self._open is None or self._open.closed:
            return
        try:
            first_row(self._open, _GIVE_BACK, self._key(session_id))
        except Exception as error:  # noqa: BLE001 - without its connection the lock is gone, too
            self._open.close()
            logger.warning("The lock of session %r went with its connection: %s", session_id, error)

    def _asked(self, query: str, session_id: str) -> list[str] | None:
        """The first row of a query about one session; a connection that broke while it was idle is replaced."""
        from psycopg import OperationalError

        connection = self._connected()
        try:
            return first_row(connection, query, self._key(session_id))
        except OperationalError:
            if not connection.closed:
                raise
        return first_row(self._connected(), query, self._key(session_id))

    def _connected(self, broken_by: Exception | None = None) -> Connection[Any]:
        """The connection; a new one, with the locks taken anew, where the old one is gone.

        Args:
            broken_by: What the old one failed with, where that is known.
        """
        if self._open is None or self._open.closed:
            self._open = None
            connection: Connection[Any] | None = None
            asked_at = time.monotonic()
            try:
                connection = self._connect()
                for session_id in sorted(self._held):
                    if why := self._why_not_again(connection, session_id):
                        self._lose(session_id, why)
            except BaseException as error:
                if connection is not None:
                    # Kept, it would pass for one that holds them all.
                    connection.close()
                reasons = [" ".join(str(each).split()) for each in (broken_by, error) if each is not None]
                for session_id in sorted(self._held):
                    self._lose(session_id, _GONE.format(session_id, "; ".join(reasons)))
                raise
            self._open = connection
            self._verified_at = asked_at
        return self._open

    def _why_not_again(self, connection: Connection[Any], session_id: str) -> str:
        """Take a lock again that was lost with its connection; gives why its run cannot go on, empty where it can."""
        if first_row(connection, _TAKE, self._key(session_id)) != ["t"]:
            return _TAKEN.format(session_id)
        newest, owner = first_row(connection, _NEWEST, session_id, OWNER) or (None, "")
        if self._still_holds(session_id, newest, owner):
            return ""
        first_row(connection, _GIVE_BACK, self._key(session_id))
        return _CONTINUED.format(session_id)

    def _lose(self, session_id: str, why: str) -> None:
        self._held.discard(session_id)
        logger.error("%s", why)
        self._lost(session_id, why + _WHAT_NOW)

    def _connect(self) -> Connection[Any]:
        import psycopg

        # A user's own timeout is for a first connection; while sessions are at work, every second counts.
        limit: dict[str, Any] = {"connect_timeout": RECONNECT_S} if self._held else {}
        connection = psycopg.connect(self._conninfo, autocommit=True, **limit)
        try:
            first_row(connection, _SETTINGS)
            self._schema, pid = first_row(connection, _WHERE) or ("", "")
            if pid != str(connection.info.backend_pid):
                logger.warning(
                    "There is a connection pooler before the PostgreSQL database. It must pool by session, or two "
                    "processes may run one session at the same time: the locks of sessions belong to a connection."
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _key(self, session_id: str) -> str:
        named = f"graph_agent/{self._schema}/{session_id}".encode("utf-8", "surrogatepass")
        return str(int.from_bytes(hashlib.sha256(named).digest()[:8], "big", signed=True))


_parents: list[Connection[Any]] = []
"""Connections of the process that this one was forked from. They are kept, as their end would be noticed there."""
