"""Whether a database takes writes now, found out by a write that is rolled back."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Protocol, runtime_checkable

from graph_agent.sqlite_connection import is_locked

PROBE_BYTES = 1 << 16
"""Bytes that a probe writes: more than an input usually stores at a time."""
_WAIT_MS = 1000
"""Milliseconds to wait for another connection's transaction; whoever uses the same connection waits meanwhile."""
_CHECK_S = 0.25
"""Seconds that the pages of a file are read for, to find damage; a larger file is read in part."""
_STEPS = 1000
"""Steps of SQLite's between two looks at the time."""


@runtime_checkable
class Probed(Protocol):
    """A saver or a store that can find out whether it takes writes."""

    async def aprobe(self) -> None:
        """Write something that is not kept.

        Raises:
            Exception: The database's own error, when it takes no writes: it is full, damaged, read-only, locked or not
                reached.
        """
        ...


def probe_sqlite(connection: sqlite3.Connection, insert: str) -> None:
    """Write `PROBE_BYTES` to a file over a connection, and roll them back.

    They reach the file, as the connection's cache is too small for them meanwhile. Nothing is written while another
    connection writes, which shows as much.

    Args:
        connection: A connection without an open transaction.
        insert: Inserts a row with one parameter, its blob.

    Raises:
        sqlite3.Error: When they cannot be written.
    """
    [[cache]] = connection.execute("PRAGMA cache_size").fetchall()
    [[wait_ms]] = connection.execute("PRAGMA busy_timeout").fetchall()
    connection.execute("PRAGMA cache_size = 1")
    connection.execute(f"PRAGMA busy_timeout = {_WAIT_MS}").fetchall()
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(insert, (bytes(PROBE_BYTES),))
    except sqlite3.OperationalError as error:
        if not is_locked(error):
            raise
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.execute(f"PRAGMA busy_timeout = {wait_ms}").fetchall()
        connection.execute(f"PRAGMA cache_size = {cache}")


def check_space(folder: Path) -> None:
    """Write `PROBE_BYTES` to a file that has no name, and so is gone when it is closed.

    A database that was written to before has some space left in its own files, and a small write succeeds there for a
    while after the disk was full.

    Args:
        folder: Where the disk is mounted, or any folder below.

    Raises:
        OSError: When there is no space for them.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(PROBE_BYTES))
        file.flush()


def check_sqlite(file: Path) -> None:
    """Read a file's pages over a connection of its own, which holds none of them in memory, to find damage.

    Args:
        file: A database whose tables have been made.

    Raises:
        sqlite3.Error: When it is damaged, or cannot be read.
    """
    with closing(
        sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True, check_same_thread=False)
    ) as connection:
        until = time.monotonic() + _CHECK_S
        # The schema is always read.
        if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
            raise sqlite3.DatabaseError(f"the database {file} has lost its tables")
        connection.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
        try:
            found = [text for (text,) in connection.execute("PRAGMA quick_check(1)")]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
            return
        if found != ["ok"]:
            raise sqlite3.DatabaseError(f"the database {file} is damaged: {found[0]}")
