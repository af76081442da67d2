"""Implements LangGraph's Store in SQLite, for a file that several processes open at once."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiosqlite
from langgraph.store.base import Op, PutOp, Result
from langgraph.store.sqlite.aio import AsyncSqliteStore

from graph_agent._compat import stop_batching
from graph_agent._internal.sync_bridge import await_uninterrupted, call_in_thread
from graph_agent.checkpoints.sqlite_connection import LockWaitConnection, Patience, check_database
from graph_agent.checkpoints.write_probe import probe_sqlite

_PROBE = "INSERT OR REPLACE INTO store (prefix, key, value) VALUES ('/ready', '', ?)"
_UNDER = "SELECT 1 FROM store WHERE prefix = ? LIMIT 1"


class SharedSqliteStore(AsyncSqliteStore):
    """The Store; cancellation does not interrupt its operations, and processes may create its tables concurrently."""

    async def setup(self) -> None:
        """Create missing tables.

        Raises:
            sqlite3.Error: If they cannot be created.
        """
        retry = Patience()
        while not self.is_setup:
            try:
                # Fetched completely: LangGraph cannot register its functions while a statement is active.
                await self.conn.execute_fetchall("PRAGMA journal_mode=WAL")
                async with self.lock:
                    await self.conn._execute(_make_tables, self.conn._conn, self.MIGRATIONS)  # type: ignore[no-untyped-call]  # no types
                await super().setup()
            except (sqlite3.OperationalError, sqlite3.IntegrityError) as error:
                await asyncio.sleep(retry.pause_s(error))

    async def is_empty(self, namespace: tuple[str, ...]) -> bool:
        """Whether a namespace itself has no items, in one query without a transaction. The caller shields it.

        Args:
            namespace: The complete namespace, not a prefix.
        """
        if not self.is_setup:
            await self.setup()
        rows = await self._rows(_UNDER, (".".join(namespace),))
        return not rows

    async def aprobe(self) -> None:
        """Check that the file accepts writes (see `graph_agent.checkpoints.write_probe`).

        Raises:
            sqlite3.Error: If it does not.
        """
        if not self.is_setup:
            await self.setup()
        await await_uninterrupted(self._probe())

    async def _probe(self) -> None:
        async with self.lock:
            # As one call on the connection's thread; the public methods make one call per statement.
            await self.conn._execute(probe_sqlite, self.conn._conn, _PROBE)  # type: ignore[no-untyped-call]  # no types

    async def _rows(self, query: str, values: tuple[str, ...]) -> list[Any]:
        # Locked: it must not read between the start of a batch and its first write (see `_reads_before_writes`).
        async with self.lock:
            return list(await self.conn.execute_fetchall(query, values))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations as one batch; a cancellation takes effect after the batch."""
        return await await_uninterrupted(self._reads_before_writes(list(ops)))

    async def _reads_before_writes(self, ops: list[Op]) -> list[Result]:
        # In two transactions: SQLite immediately refuses a write in a transaction that has read data which another
        # process has changed since.
        results: list[Result] = [None] * len(ops)
        for writes in (False, True):
            indices = [index for index, op in enumerate(ops) if isinstance(op, PutOp) is writes]
            if indices:
                found = await super().abatch([ops[index] for index in indices])
                for index, result in zip(indices, found, strict=True):
                    results[index] = result
        return results


@asynccontextmanager
async def open_sqlite_store(path: Path) -> AsyncIterator[SharedSqliteStore]:
    """Open the Store of a file over a separate connection, and close it on exit.

    Raises:
        ConfigError: If the file cannot be opened.
    """
    await call_in_thread(check_database, path)
    async with aiosqlite.connect(path, isolation_level=None, factory=LockWaitConnection) as connection:
        store = SharedSqliteStore(connection)
        try:
            yield store
        finally:
            await stop_batching(store)


def _make_tables(connection: sqlite3.Connection, migrations: Sequence[str]) -> None:
    """Create or migrate the tables in one transaction: LangGraph's `setup` cannot continue after a kill in between."""
    if _version(connection) == len(migrations) - 1:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("CREATE TABLE IF NOT EXISTS store_migrations (v INTEGER PRIMARY KEY)")
        for version in range(_version(connection) + 1, len(migrations)):
            try:
                connection.execute(migrations[version])
            except sqlite3.OperationalError as error:
                # A process with LangGraph's `setup` was killed before it recorded the migration.
                if "duplicate column name" not in str(error):
                    raise
            connection.execute("INSERT INTO store_migrations (v) VALUES (?)", (version,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    """Return the number of the last migration; -1 before the first."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'store_migrations'").fetchall():
        return -1
    [[version]] = connection.execute("SELECT coalesce(max(v), -1) FROM store_migrations").fetchall()
    return int(version)
