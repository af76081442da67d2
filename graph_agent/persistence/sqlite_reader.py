"""A read-only saver of an SQLite file, for programs that list sessions and read histories."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import ormsgpack
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory
from langgraph.checkpoint.sqlite import SqliteSaver

from graph_agent.persistence.session_index import sqlite_threads
from graph_agent.persistence.sqlite_connection import LockWaitConnection
from graph_agent.persistence.sqlite_files import check_database

_SNAPSHOT = 7
"""Code of LangGraph's full copy of a delta channel, which is stored as its value."""
_FIRST = "SELECT min(checkpoint_id) FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ''"
_HAS_TABLES = "SELECT count(*) = 2 FROM sqlite_master WHERE type = 'table' AND name IN ('checkpoints', 'writes')"


class SqliteReader(SqliteSaver):
    """The saver. Messages are the dicts of their fields; its asynchronous methods block the event loop while they read.

    Args:
        file: The database.
        connection: An open connection to it.
    """

    def __init__(self, file: Path, connection: sqlite3.Connection) -> None:
        super().__init__(connection, serde=PlainDataSerializer())
        self.database = file
        """The file."""
        self.is_setup = True
        self._has_tables = bool(connection.execute(_HAS_TABLES).fetchone()[0])

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint; None if there is none."""
        return self.get_tuple(config) if self._has_tables else None

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield the matching checkpoints, newest first."""
        for found in self.list(config, filter=filter, before=before, limit=limit) if self._has_tables else ():
            yield found

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the stored writes of channels, by channel."""
        return self.get_delta_channel_history(config=config, channels=channels)

    async def list_threads(
        self, *, group: str | None = None, after: str | None = None, limit: int | None = None
    ) -> list[str]:
        """Return the threads' ids (see `graph_agent.session.history.list_threads`)."""
        return await sqlite_threads(self.database, group, after, limit) if self._has_tables else []

    async def first_checkpoint(self, thread_id: str) -> CheckpointTuple | None:
        """Return the oldest checkpoint of a thread; None if there is no such thread."""
        (checkpoint_id,) = self.conn.execute(_FIRST, (thread_id,)).fetchone()
        if checkpoint_id is None:
            return None
        at = {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": checkpoint_id}
        return self.get_tuple({"configurable": at})


@contextmanager
def open_sqlite_reader(path: Path) -> Iterator[SqliteReader]:
    """Open the reader of a file, and close it on exit.

    Raises:
        ConfigError: If the file cannot be opened, or is not a database.
    """
    check_database(path)
    with closing(LockWaitConnection(path, check_same_thread=False)) as connection:
        connection.execute("PRAGMA query_only = ON")
        yield SqliteReader(path.resolve(), connection)


class PlainDataSerializer:
    """Reads checkpoints as plain data: the fields of an object in place of the object, so that no class is imported."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Refuse to write.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("This serializer only reads.")

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return the stored value; None for a form that this package does not write."""
        kind, stored = data
        if kind == "json":
            return json.loads(stored)
        return _unpack(stored) if kind == "msgpack" else None


def _unpack(stored: bytes) -> Any:
    return ormsgpack.unpackb(stored, ext_hook=_fields, option=ormsgpack.OPT_NON_STR_KEYS)


def _fields(code: int, stored: bytes) -> Any:
    """Return the fields or arguments of an object, which LangGraph stores as `[module, class, arguments, …]`."""
    value = _unpack(stored)
    return value[2] if code != _SNAPSHOT and isinstance(value, list) and len(value) > 2 else value
