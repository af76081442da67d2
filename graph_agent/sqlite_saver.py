"""LangGraph's saver in SQLite, for a file that several processes open, and for many sessions at work in one of them.

LangGraph's asynchronous saver hands each statement to a thread, and commits each of its operations. This one is its
blocking saver on a thread of its own: an operation is one errand, and those that wait together share one commit.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.sqlite import SqliteSaver

from graph_agent.session_index import SQLITE_INDEX, sqlite_threads
from graph_agent.sqlite_files import BUSY_S, Patience, check_database
from graph_agent.sqlite_writer import Writer


class SharedSqliteSaver(SqliteSaver):
    """The saver; from a running loop its thread works for it, and the blocking entry points use it as they are.

    Args:
        file: The whole path of the database, which other processes may use too.
        connection: An open connection to it that any thread may use.
        serde: Writes checkpoints, and reads them.
    """

    def __init__(self, file: Path, connection: sqlite3.Connection, serde: SerializerProtocol) -> None:
        super().__init__(connection, serde=serde)
        self.database = file
        """The file."""
        self._has_index = False
        self._writer = Writer(connection, self.lock, self.setup)

    def setup(self) -> None:
        """Make the tables, unless they are there.

        Raises:
            sqlite3.Error: When they cannot be made.
        """
        patience = Patience()
        while not self._has_index:
            try:
                super().setup()
                self.conn.execute(SQLITE_INDEX)
                self._has_index = True
            except (sqlite3.OperationalError, sqlite3.IntegrityError) as error:
                time.sleep(patience.pause_s(error))

    @contextmanager
    def cursor(self, transaction: bool = True) -> Iterator[sqlite3.Cursor]:
        """As `SqliteSaver.cursor`; on the thread, whose errands share a transaction, it takes no lock and ends none."""
        if not self._writer.is_at_work_here:
            with super().cursor(transaction) as cursor:
                yield cursor
            return
        with closing(self.conn.cursor()) as cursor:
            yield cursor

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As `get_tuple`."""
        return await self._writer.do(partial(super().get_tuple, config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As `list`; all that is asked for is read at once."""
        listed = partial(super().list, config, filter=filter, before=before, limit=limit)
        for found in await self._writer.do(lambda: [*listed()]):
            yield found

    async def list_threads(
        self, *, group: str | None = None, after: str | None = None, limit: int | None = None
    ) -> list[str]:
        """The ids of the threads, over a connection of its own (see `graph_agent.history.list_threads`)."""
        if not self._has_index:
            await self._writer.do(lambda: None)
        return await sqlite_threads(self.database, group, after, limit)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As `put`; it is stored when this returns."""
        return await self._writer.do(partial(super().put, config, checkpoint, metadata, new_versions))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """As `put_writes`; they are stored when this returns."""
        await self._writer.do(partial(super().put_writes, config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        """As `delete_thread`."""
        await self._writer.do(partial(super().delete_thread, thread_id))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """As `get_delta_channel_history`."""
        return await self._writer.do(partial(super().get_delta_channel_history, config=config, channels=channels))

    async def aclose(self) -> None:
        """Let the thread end when it has done what waits; what is asked of it afterwards is refused."""
        await self._writer.aclose()


@asynccontextmanager
async def open_sqlite_saver(path: Path, serde: SerializerProtocol) -> AsyncIterator[SharedSqliteSaver]:
    """Open the saver of a file, over a connection of its own, and close it on leaving.

    Raises:
        ConfigError: When the file cannot be opened.
    """
    # Files are looked for in threads: servers refuse code that holds their loop up.
    await asyncio.to_thread(check_database, path)
    connection = await asyncio.to_thread(sqlite3.connect, path, timeout=BUSY_S, check_same_thread=False)
    try:
        saver = SharedSqliteSaver(await asyncio.to_thread(path.resolve), connection, serde)
        try:
            yield saver
        finally:
            await saver.aclose()
    finally:
        await asyncio.to_thread(connection.close)
