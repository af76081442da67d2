"""LangGraph's saver in SQLite, for a file that several processes open at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiosqlite
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from graph_agent.sqlite_files import BUSY_S, until_free


class SharedSqliteSaver(AsyncSqliteSaver):
    """The saver, whose tables two processes may make at the same time."""

    async def setup(self) -> None:
        """Make the tables, unless they are there.

        Raises:
            sqlite3.Error: When they cannot be made.
        """
        if not self.is_setup:
            await until_free(super().setup)


@asynccontextmanager
async def open_sqlite_saver(path: Path, serde: SerializerProtocol) -> AsyncIterator[AsyncSqliteSaver]:
    """Open the saver of a file, over a connection of its own, and close it on leaving."""
    async with aiosqlite.connect(path, timeout=BUSY_S) as connection:
        yield SharedSqliteSaver(connection, serde=serde)
