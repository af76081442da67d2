"""SQLite files that several processes open at once."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from graph_agent.errors import ConfigError
from graph_agent.persistence.sqlite_connection import BUSY_S, DatabaseLockedError, PatientConnection

_PAUSE_S = 0.02
_BY_OTHERS = frozenset(
    # An error of SQL, too: what was not there is there now, or a column is.
    (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_ERROR)
)
"""What fails where another process makes the same tables."""
_PRIMARY = 0xFF
"""The bits of an error's code that say its kind; see https://www.sqlite.org/rescode.html."""


class Patience:
    """How long to try again to make tables while another process makes them: what is wanted is there then.

    SQLite does not wait its usual time where a journal's mode is changed, so whoever does it has to.
    """

    def __init__(self) -> None:
        self._until = time.monotonic() + BUSY_S

    def pause_s(self, error: sqlite3.Error) -> float:
        """Seconds to wait before the next attempt.

        Args:
            error: What the last attempt failed with.

        Raises:
            sqlite3.Error: That error, when it is nothing that another process does, or `BUSY_S` seconds are over.
        """
        if isinstance(error, DatabaseLockedError) and error.waited_s:
            raise error
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        if code & _PRIMARY not in _BY_OTHERS or time.monotonic() > self._until:
            raise error
        return _PAUSE_S


def check_database(path: Path) -> None:
    """Check that a file is a database, or can become one.

    Raises:
        ConfigError: When it cannot be opened, or is something else.
        DatabaseLockedError: When another process keeps it locked.
    """
    try:
        with closing(PatientConnection(path)) as connection:
            connection.execute("PRAGMA schema_version").fetchone()
    except DatabaseLockedError:
        raise
    except sqlite3.Error as error:
        raise ConfigError(
            f"db='sqlite:///{path}': the database cannot be opened: {error}. It must be a file that this user may "
            "write, in a folder that exists."
        ) from None
