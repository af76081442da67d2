"""LangGraph's Store in SQLite, for a file that several processes open at once."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import aiosqlite
from langgraph.store.base import Op, Result
from langgraph.store.sqlite.aio import AsyncSqliteStore

from graph_agent.blocking import to_its_end

BUSY_S = 30.0
"""Seconds to wait for another connection's write."""
_PAUSE_S = 0.02


class SharedSqliteStore(AsyncSqliteStore):
    """The store, whose operations are never cut in two, and whose tables two processes may make at the same time."""

    async def setup(self) -> None:
        """Make the tables, unless they are there.

        Raises:
            sqlite3.Error: When they cannot be made.
        """
        until = time.monotonic() + BUSY_S
        while not self.is_setup:
            try:
                await self.conn.execute("PRAGMA journal_mode=WAL")
                await super().setup()
            except (sqlite3.OperationalError, sqlite3.IntegrityError):
                # Another process makes them just now: what this one wanted to add is there already.
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(_PAUSE_S)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `AsyncSqliteStore.abatch`; a cancellation takes effect when the batch is done."""
        return await to_its_end(super().abatch(ops))


@asynccontextmanager
async def open_sqlite_store(path: Path) -> AsyncIterator[SharedSqliteStore]:
    """Open the store of a file, over a connection of its own, and close it on leaving."""
    async with aiosqlite.connect(path, isolation_level=None, timeout=BUSY_S) as connection:
        yield SharedSqliteStore(connection)
