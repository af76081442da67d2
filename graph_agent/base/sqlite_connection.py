"""Opens an SQLite file that other processes may lock: one limited wait, and an error that names the file.

SQLite waits per statement, and a failed run executes several, each of which would wait again. After a wait has timed
out, the connections of this process to the same file wait only `_RETRY_S`, until one of them can write again.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from graph_agent.base.database_urls import check_names
from graph_agent.base.errors import ConfigError, OperatorError

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("graph_agent.checkpoints.sqlite_connection")

BUSY_S = 30.0
"""Seconds to wait for other connections' writes; a commit is short, but many may queue on a busy disk."""
_NOTICE_S = 3.0
"""Seconds of waiting after which a warning is logged."""
_RETRY_S = 0.25
"""Seconds to wait after an earlier wait for the same file has timed out."""
_FAILED_S = 30.0
"""Seconds for which a wait that timed out shortens the next ones."""
_PRIMARY = 0xFF
"""Mask of the primary result code in an error code; see https://www.sqlite.org/rescode.html."""
_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
"""Primary result codes for a lock that another connection holds."""
_REMOVED = (sqlite3.SQLITE_READONLY_DBMOVED, "SQLITE_READONLY_DBMOVED")
"""SQLite's own code, which it reports only without a write-ahead log."""

_failed_waits: dict[str, tuple[float, float]] = {}
"""File → time on the monotonic clock, and length in seconds, of the last wait that timed out.

Removed after a successful write.
"""


class DatabaseLockedError(OperatorError, sqlite3.OperationalError):
    """Raised when another process keeps an SQLite database locked for too long."""

    waited_s: float = 0.0
    """Seconds waited for the lock, by this connection or another one to the same file; 0 if SQLite refused at once
    because waiting could not help.
    """


class DatabaseRemovedError(OperatorError, sqlite3.OperationalError):
    """Raised when the file of an open SQLite database was removed or replaced."""


def is_locked(error: BaseException) -> bool:
    """Whether an error of SQLite means that another connection holds a lock; False for any other exception."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, sqlite3.OperationalError) and code is not None and code & _PRIMARY in _LOCKED


class LockWaitConnection(sqlite3.Connection):
    """An SQLite connection that waits up to `BUSY_S` seconds while another connection holds a lock on the file.

    It is used as the `factory` of `sqlite3.connect`. After `_NOTICE_S` seconds of waiting, a warning is logged.

    Args:
        database: Path of the file.
        timeout: Accepted and not used.
        **options: Those of `sqlite3.Connection`.

    Raises:
        DatabaseLockedError: By each statement and commit: the lock was held for longer.
        DatabaseRemovedError: By each statement and commit: the file was removed or replaced.
    """

    def __init__(self, database: str | Path, timeout: float = BUSY_S, **options: Any) -> None:
        # SQLite's own wait ends early, so that a warning can be logged; `wait_for` goes on with it.
        super().__init__(database, timeout=_NOTICE_S, **options)
        self._file = str(database)
        self._path = os.path.abspath(database)
        self._inode = _inode_of(self._path)
        """Inode of the open file; None for a database that is no file."""

    def cursor(self, factory: Any = None) -> Any:
        """Return a cursor whose statements wait for locks as `wait_for` does; with a `factory`, a cursor of that
        class.
        """
        return super().cursor(factory or _WaitingCursor)

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        """Execute one statement with its parameters, and return the cursor."""
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any]) -> Any:
        """Execute one statement for each of several parameter sets, and return the cursor."""
        return self.cursor().executemany(sql, parameters)

    def executescript(self, sql_script: str) -> Any:
        """Execute several statements without parameters, and return the cursor."""
        return self.cursor().executescript(sql_script)

    def commit(self) -> None:
        """Commit the transaction.

        Raises `DatabaseLockedError` if another connection holds the lock for too long, and `DatabaseRemovedError` if
        the file was removed or replaced.
        """
        self.check_file()
        self.wait_for(super().commit)

    def check_file(self) -> None:
        """Raise `DatabaseRemovedError` if the file was removed or replaced since this connection opened it.

        A connection that could not read the file's inode when it was opened passes.
        """
        # SQLite itself would write to the removed file without an error, and nothing would ever read that.
        if self._inode is None or _inode_of(self._path) == self._inode:
            return
        removed = DatabaseRemovedError(
            f"db='sqlite:///{self._file}': the file was removed or replaced while it was open, and what is written "
            "now would be lost. Stop every process that has it open, put the file back if you have it, and start again."
        )
        removed.sqlite_errorcode, removed.sqlite_errorname = _REMOVED
        raise removed

    def wait_for(self, statement: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `statement` with the arguments, and return its result; wait while another connection holds the lock.

        Waits at most `BUSY_S` seconds, or `_RETRY_S` if a wait for the same file has timed out within the last
        `_FAILED_S` seconds. A wait of more than `_NOTICE_S` seconds is logged as a warning. Errors of the statement
        that are not about a lock are raised unchanged.

        Raises:
            DatabaseLockedError: The lock is still held, SQLite refuses to wait, or the statement has changed rows
                already and so cannot be repeated.
        """
        before, failed = self.total_changes, _failed_waits.get(self._file)
        recently_failed = failed is not None and time.monotonic() - failed[0] < _FAILED_S
        if recently_failed:
            self._set_wait(_RETRY_S)
        started = time.monotonic()
        try:
            result = statement(*args, **kwargs)
        except sqlite3.OperationalError as error:
            if not is_locked(error):
                raise
            waited = time.monotonic() - started
            # SQLite refuses at once where a wait could only be a deadlock. Rows that were changed would be changed
            # twice.
            if recently_failed or waited < 0.9 * _NOTICE_S or self.total_changes != before:
                raise self._locked_error(error, failed[1] if recently_failed and failed else 0.0) from None
        else:
            if failed is not None and self.total_changes != before:
                _failed_waits.pop(self._file, None)
            return result
        finally:
            if recently_failed:
                self._set_wait(_NOTICE_S)
        logger.warning("The database %s is locked by another process; waiting %g s at most.", self._file, BUSY_S)
        self._set_wait(BUSY_S - _NOTICE_S)
        try:
            return statement(*args, **kwargs)
        except sqlite3.OperationalError as error:
            if not is_locked(error):
                raise
            waited = time.monotonic() - started
            _failed_waits[self._file] = (time.monotonic(), waited)
            raise self._locked_error(error, waited) from None
        finally:
            self._set_wait(_NOTICE_S)

    def _set_wait(self, seconds: float) -> None:
        """Set the seconds that SQLite itself waits for a lock."""
        # Not a cursor of this class, which would wait for locks and set the time itself.
        plain_cursor: sqlite3.Cursor = super().cursor()
        plain_cursor.execute(f"PRAGMA busy_timeout = {round(1000 * seconds)}").close()

    def _locked_error(self, error: sqlite3.OperationalError, waited: float) -> DatabaseLockedError:
        """Return the error for a lock that was held for `waited` seconds, with the result code of SQLite's `error`."""
        locked = DatabaseLockedError(
            f"db='sqlite:///{self._file}': the database is locked: another process has a transaction open (waited "
            f"{waited:.0f} s). End that process or its transaction, and try again; `fuser {self._file}` shows which "
            "processes have the file open."
        )
        locked.waited_s = waited
        locked.sqlite_errorcode, locked.sqlite_errorname = error.sqlite_errorcode, error.sqlite_errorname
        return locked


class _WaitingCursor(sqlite3.Cursor):
    """A cursor that, before each statement, checks that the file still exists, and waits for locks."""

    connection: LockWaitConnection  # pyright: ignore[reportIncompatibleMethodOverride] - typeshed has a property there

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        """Execute one statement, waiting for locks (see `LockWaitConnection.wait_for`), and return the cursor.

        Raises `DatabaseRemovedError` if the file was removed or replaced, except for a rollback.
        """
        if not sql.startswith("ROLLBACK"):
            self.connection.check_file()
        return self.connection.wait_for(super().execute, sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any]) -> Any:
        """Execute one statement for each of several parameter sets, waiting for locks, and return the cursor.

        Raises `DatabaseRemovedError` if the file was removed or replaced.
        """
        self.connection.check_file()
        # As a list, since a second attempt reads the parameters again.
        return self.connection.wait_for(super().executemany, sql, list(parameters))

    def executescript(self, sql_script: str) -> Any:
        """Execute several statements, waiting for locks, and return the cursor.

        Raises `DatabaseRemovedError` if the file was removed or replaced.
        """
        self.connection.check_file()
        return self.connection.wait_for(super().executescript, sql_script)


def _inode_of(path: str) -> int | None:
    """Return the inode of a file; None if it does not exist."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


_PAUSE_S = 0.02
"""Seconds between two attempts to create tables."""
_CONCURRENT_ERRORS = frozenset(
    # Includes SQL errors: a missing table or column may exist by now.
    (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_ERROR)
)
"""Error codes that occur while another process creates the same tables."""


class Patience:
    """Retry policy for creating tables while another process creates the same ones.

    It lasts `BUSY_S` seconds from its construction. Changing the journal mode needs it, too, because SQLite does not
    wait for locks then.
    """

    def __init__(self) -> None:
        self._until = time.monotonic() + BUSY_S

    def pause_s(self, error: sqlite3.Error) -> float:
        """Return the seconds to wait after a failed attempt, before the next one.

        Raises:
            sqlite3.Error: `error` itself: no other process can have caused it, it has waited for a lock already, or
                `BUSY_S` seconds have passed.
        """
        if isinstance(error, DatabaseLockedError) and error.waited_s:
            raise error
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        if code & _PRIMARY not in _CONCURRENT_ERRORS or time.monotonic() > self._until:
            raise error
        return _PAUSE_S


def check_sqlite_file(path: Path) -> None:
    """Check that a file is an SQLite database whose table `checkpoints`, if it has one, holds sessions; a missing file
    is created.

    Raises:
        ConfigError: The table is another program's, the file cannot be opened, or it has several names (hard links).
        DatabaseLockedError: The file stays locked.
    """
    check_names(path)
    try:
        with closing(LockWaitConnection(path)) as connection:
            columns = {name for (name,) in connection.execute("SELECT name FROM pragma_table_info('checkpoints')")}
    except DatabaseLockedError:
        raise
    except sqlite3.Error as error:
        raise ConfigError(
            f"db='sqlite:///{path}': the database cannot be opened: {error}. It must be a file that this user may "
            "write, in a folder that exists and on a disk with space."
        ) from None
    if columns and not columns >= {"thread_id", "checkpoint_id"}:
        raise ConfigError(
            f"db='sqlite:///{path}': the database is of another program: its table 'checkpoints' holds no sessions. "
            "Name a file of its own, or one that does not exist."
        )
