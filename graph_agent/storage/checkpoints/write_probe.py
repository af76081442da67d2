"""Probes whether a database accepts writes, with a write that is rolled back.

Operators need it: `/ready` reports a full or damaged disk to the load balancer before a request fails.
"""

from __future__ import annotations

import sqlite3
import tempfile
import threading
from contextlib import closing
from pathlib import Path
from typing import Protocol, runtime_checkable

from graph_agent.base.sqlite_connection import is_locked

PROBE_BYTES = 1 << 16
"""Bytes that a probe writes; more than an input usually stores at once."""
_WAIT_MS = 1000
"""Milliseconds to wait for another connection's transaction; other users of the same connection wait too."""
_CHECK_S = 0.25
"""Maximum seconds for reading a file's pages to find damage; a large file is read in part."""


@runtime_checkable
class SupportsWriteProbe(Protocol):
    """A saver or a Store that can check whether it accepts writes."""

    async def aprobe(self) -> None:
        """Write data and roll it back; return if the database accepts writes.

        Raises the database's own error if not, such as `sqlite3.Error` or `psycopg.Error`; `OSError` for a full disk.
        """


def probe_sqlite(connection: sqlite3.Connection, insert: str) -> None:
    """Check that an SQLite database accepts writes: write `PROBE_BYTES` in a transaction, and roll it back.

    The bytes reach the file, as the cache of the connection is temporarily too small for them. If another connection
    holds the write lock for a second, nothing is written and the check passes, since that write already proves that the
    file accepts writes.

    Args:
        connection: A connection without a transaction. Its `cache_size` and `busy_timeout` are restored.
        insert: SQL that inserts one row, with one parameter for its blob.

    Raises:
        sqlite3.Error: If the write fails for another reason than a lock.
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
    """Write `PROBE_BYTES` to an unnamed temporary file in a folder, and delete it; raise `OSError` if that fails.

    A used database has free space in its own files, so small writes to it succeed for a while after its disk is full.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(PROBE_BYTES))
        file.flush()


def check_sqlite(file: Path) -> None:
    """Check that an SQLite file has tables and no damaged page, over a new connection with an empty cache.

    After `_CHECK_S` seconds the check ends as passed. Raises `sqlite3.DatabaseError` if the file is damaged or has no
    table, and another `sqlite3.Error` if it does not exist or cannot be read.
    """
    with closing(
        sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True, check_same_thread=False)
    ) as connection:
        # The schema is always read.
        if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
            raise sqlite3.DatabaseError(f"the database {file} has lost its tables")
        late = threading.Event()

        def stop() -> None:
            """Interrupt the check, and note that it is not complete."""
            late.set()
            connection.interrupt()

        # A progress handler would not do: some versions of SQLite check a whole table between two calls of it.
        timer = threading.Timer(_CHECK_S, stop)
        timer.start()
        try:
            found = [text for (text,) in connection.execute("PRAGMA quick_check(1)")]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
            return
        finally:
            timer.cancel()
            timer.join()
        # An interrupted check may take pages that it has not reached for lost ones.
        if found != ["ok"] and not late.is_set():
            raise sqlite3.DatabaseError(f"the database {file} is damaged: {found[0]}")
