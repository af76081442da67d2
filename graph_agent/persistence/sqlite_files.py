"""SQLite files that several processes open at once."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from graph_agent.errors import ConfigError
from graph_agent.persistence.sqlite_connection import BUSY_S, DatabaseLockedError, LockWaitConnection

_PAUSE_S = 0.02
_CONCURRENT_ERRORS = frozenset(
    # Includes SQL errors: a missing table or column may exist by now.
    (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_ERROR)
)
"""Error codes that occur while another process creates the same tables."""
_PRIMARY = 0xFF
"""Mask of the primary result code in an error code; see https://www.sqlite.org/rescode.html."""


class Patience:
    """Retry policy for creating tables while another process creates the same ones.

    Needed for the journal mode too: SQLite does not wait for locks when the mode is changed.
    """

    def __init__(self) -> None:
        self._until = time.monotonic() + BUSY_S

    def pause_s(self, error: sqlite3.Error) -> float:
        """Return the seconds to wait before the next attempt.

        Args:
            error: The error of the last attempt.

        Raises:
            sqlite3.Error: That error, if another process cannot be its cause or `BUSY_S` seconds have passed.
        """
        if isinstance(error, DatabaseLockedError) and error.waited_s:
            raise error
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        if code & _PRIMARY not in _CONCURRENT_ERRORS or time.monotonic() > self._until:
            raise error
        return _PAUSE_S


def check_database(path: Path) -> None:
    """Check that a file is a database or can be created as one.

    Raises:
        ConfigError: If it cannot be opened, or is not a database.
        DatabaseLockedError: If another process keeps it locked.
    """
    try:
        with closing(LockWaitConnection(path)) as connection:
            connection.execute("PRAGMA schema_version").fetchone()
    except DatabaseLockedError:
        raise
    except sqlite3.Error as error:
        raise ConfigError(
            f"db='sqlite:///{path}': the database cannot be opened: {error}. It must be a file that this user may "
            "write, in a folder that exists."
        ) from None
