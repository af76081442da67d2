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

from graph_agent.storage.checkpoints.sqlite_connection import is_locked

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
        """Write data and roll it back; raise the database's own error if it accepts no writes."""
        ...


def probe_sqlite(connection: sqlite3.Connection, insert: str) -> None:
    """Write `PROBE_BYTES` with an `insert` of one blob, over a connection without a transaction, and roll them back.

    The bytes reach the file, as the connection's cache is temporarily too small for them. Nothing is written while
    another connection writes, since that write already proves that the file accepts writes.
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
    """Write `PROBE_BYTES` to an unnamed temporary file in a folder; raise `OSError` if its disk is full.

    A used database has free space in its own files, so small writes succeed for a while after the disk is full.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(PROBE_BYTES))
        file.flush()


def check_sqlite(file: Path) -> None:
    """Read a file's pages over a connection with an empty cache; raise `sqlite3.Error` if it is damaged."""
    with closing(
        sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True, check_same_thread=False)
    ) as connection:
        # The schema is always read.
        if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
            raise sqlite3.DatabaseError(f"the database {file} has lost its tables")
        late = threading.Event()

        def stop() -> None:
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
