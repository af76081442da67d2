"""Connections to an SQLite file that other processes lock: one limited wait, and an error that names the file.

SQLite's own wait is per statement, and a failed run makes several: each would wait anew. Once a wait was in vain, the
connections of this process to the same file wait `_RETRY_S` only, until one of them can write again.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from graph_agent.errors import OperatorError

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

BUSY_S = 30.0
"""Seconds to wait for another connection's write: a commit is short, but on a busy disk there may be many before it."""
_NOTICE_S = 3.0
"""Seconds of waiting after which the log says so."""
_RETRY_S = 0.25
_PRIMARY = 0xFF
"""The bits of an error's code that name its kind; see https://www.sqlite.org/rescode.html."""
_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

_in_vain: dict[str, tuple[float, float]] = {}
"""File → when a wait for its lock was in vain, and its seconds; without those that could be written since."""


class DatabaseLockedError(OperatorError, sqlite3.OperationalError):
    """Another process keeps an SQLite database locked."""

    waited_s: float = 0.0
    """Seconds that were waited for the lock, by this connection or another one to the same file; 0 where SQLite refuses
    at once, as it does where waiting could not help.
    """


def is_locked(error: BaseException) -> bool:
    """Whether an SQLite error says that another connection holds a lock."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, sqlite3.OperationalError) and code is not None and code & _PRIMARY in _LOCKED


class PatientConnection(sqlite3.Connection):
    """A connection that waits `BUSY_S` seconds at most for the locks of others; takes the place of `sqlite3.connect`.

    Args:
        database: The file.
        timeout: Not used; it is `BUSY_S`.
        options: As for `sqlite3.connect`.
    """

    def __init__(self, database: str | Path, timeout: float = BUSY_S, **options: Any) -> None:
        super().__init__(database, timeout=_NOTICE_S, **options)
        self._file = str(database)

    def cursor(self, factory: Any = None) -> Any:
        """As `sqlite3.Connection.cursor`, of cursors that wait the same way."""
        return super().cursor(factory or _PatientCursor)

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        """As `sqlite3.Connection.execute`."""
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any]) -> Any:
        """As `sqlite3.Connection.executemany`."""
        return self.cursor().executemany(sql, parameters)

    def executescript(self, sql_script: str) -> Any:
        """As `sqlite3.Connection.executescript`."""
        return self.cursor().executescript(sql_script)

    def commit(self) -> None:
        """As `sqlite3.Connection.commit`.

        Raises:
            DatabaseLockedError: When another connection holds the lock for too long.
        """
        self.wait_for(super().commit)

    def wait_for(self, statement: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Execute a statement, and wait for the file's lock where another connection holds it.

        Raises:
            DatabaseLockedError: When it is held for too long.
        """
        before, failed = self.total_changes, _in_vain.get(self._file)
        hopeless = failed is not None and time.monotonic() - failed[0] < BUSY_S
        if hopeless:
            self._set_wait(_RETRY_S)
        began = time.monotonic()
        try:
            result = statement(*args, **kwargs)
        except sqlite3.OperationalError as error:
            if not is_locked(error):
                raise
            waited = time.monotonic() - began
            if hopeless or waited < 0.9 * _NOTICE_S or self.total_changes != before:
                raise self._locked(error, failed[1] if hopeless and failed else 0.0) from None
        else:
            if failed is not None and self.total_changes != before:
                _in_vain.pop(self._file, None)
            return result
        finally:
            if hopeless:
                self._set_wait(_NOTICE_S)
        logger.warning("The database %s is locked by another process; waiting %g s at most.", self._file, BUSY_S)
        self._set_wait(BUSY_S - _NOTICE_S)
        try:
            return statement(*args, **kwargs)
        except sqlite3.OperationalError as error:
            if not is_locked(error):
                raise
            waited = time.monotonic() - began
            _in_vain[self._file] = (time.monotonic(), waited)
            raise self._locked(error, waited) from None
        finally:
            self._set_wait(_NOTICE_S)

    def _set_wait(self, seconds: float) -> None:
        with_no_wait: sqlite3.Cursor = super().cursor()
        with_no_wait.execute(f"PRAGMA busy_timeout = {round(1000 * seconds)}").close()

    def _locked(self, error: sqlite3.OperationalError, waited: float) -> DatabaseLockedError:
        made = DatabaseLockedError(
            f"db='sqlite:///{self._file}': the database is locked: another process has a transaction open (waited "
            f"{waited:.0f} s). End that process or its transaction, and try again; `fuser {self._file}` shows which "
            "processes have the file open."
        )
        made.waited_s = waited
        made.sqlite_errorcode, made.sqlite_errorname = error.sqlite_errorcode, error.sqlite_errorname
        return made


class _PatientCursor(sqlite3.Cursor):
    connection: PatientConnection  # pyright: ignore[reportIncompatibleMethodOverride] - typeshed has a property there

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        return self.connection.wait_for(super().execute, sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any]) -> Any:
        # A second attempt reads them again.
        return self.connection.wait_for(super().executemany, sql, list(parameters))

    def executescript(self, sql_script: str) -> Any:
        return self.connection.wait_for(super().executescript, sql_script)
