"""LangGraph's Store in SQLite, for a file that several processes open at once."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiosqlite
from langgraph.store.base import Op, PutOp, Result
from langgraph.store.sqlite.aio import AsyncSqliteStore

from graph_agent.blocking import to_its_end
from graph_agent.daemon_threads import call_in_thread
from graph_agent.sqlite_connection import PatientConnection
from graph_agent.sqlite_files import Patience, check_database
from graph_agent.write_probe import probe_sqlite

_PROBE = "INSERT OR REPLACE INTO store (prefix, key, value) VALUES ('/ready', '', ?)"
_UNDER = "SELECT 1 FROM store WHERE prefix = ? LIMIT 1"


class SharedSqliteStore(AsyncSqliteStore):
    """The store, whose operations are never cut in two, and whose tables two processes may make at the same time."""

    async def setup(self) -> None:
        """Make the tables, unless they are there.

        Raises:
            sqlite3.Error: When they cannot be made.
        """
        patience = Patience()
        while not self.is_setup:
            try:
                # Read to its end: LangGraph cannot set its functions anew while a statement is under way.
                await self.conn.execute_fetchall("PRAGMA journal_mode=WAL")
                await super().setup()
            except (sqlite3.OperationalError, sqlite3.IntegrityError) as error:
                await asyncio.sleep(patience.pause_s(error))

    async def is_empty(self, namespace: tuple[str, ...]) -> bool:
        """Whether a namespace itself holds nothing: one query, where a search takes a transaction.

        Args:
            namespace: The whole namespace, not the beginning of one.
        """
        if not self.is_setup:
            await self.setup()
        rows = await to_its_end(self._rows(_UNDER, (".".join(namespace),)))
        return not rows

    async def aprobe(self) -> None:
        """Find out whether the file takes writes (see `graph_agent.write_probe`).

        Raises:
            sqlite3.Error: When it does not.
        """
        if not self.is_setup:
            await self.setup()
        await to_its_end(self._probe())

    async def _probe(self) -> None:
        async with self.lock:
            # On the connection's own thread, as its public methods do it statement by statement.
            await self.conn._execute(probe_sqlite, self.conn._conn, _PROBE)  # type: ignore[no-untyped-call]  # no types

    async def _rows(self, query: str, values: tuple[str, ...]) -> list[Any]:
        # Not between a batch's beginning and its first write, which would have read then (see `_reads_before_writes`).
        async with self.lock:
            return list(await self.conn.execute_fetchall(query, values))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `AsyncSqliteStore.abatch`; a cancellation takes effect when the batch is done."""
        return await to_its_end(self._reads_before_writes(list(ops)))

    async def _reads_before_writes(self, ops: list[Op]) -> list[Result]:
        # In two transactions: SQLite refuses at once, however long it may wait, to let one write that has read what
        # another process has changed since.
        results: list[Result] = [None] * len(ops)
        for kind in (False, True):
            places = [at for at, op in enumerate(ops) if isinstance(op, PutOp) is kind]
            if places:
                found = await super().abatch([ops[at] for at in places])
                for at, result in zip(places, found, strict=True):
                    results[at] = result
        return results


@asynccontextmanager
async def open_sqlite_store(path: Path) -> AsyncIterator[SharedSqliteStore]:
    """Open the store of a file, over a connection of its own, and close it on leaving.

    Raises:
        ConfigError: When the file cannot be opened.
    """
    await call_in_thread(check_database, path)
    async with aiosqlite.connect(path, isolation_level=None, factory=PatientConnection) as connection:
        yield SharedSqliteStore(connection)
