"""Reads sessions from an SQLite file as plain data, without LangGraph, whose import takes longer than the reading.

The reader has the methods of a saver that `session.history` calls.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ormsgpack

from graph_agent.base.errors import UnreadableValueError
from graph_agent.core.state.lengths import checked, lengths_of, removed
from graph_agent.storage.checkpoints.format import check_format, check_values, readable
from graph_agent.storage.checkpoints.session_index import sqlite_threads
from graph_agent.storage.checkpoints.sqlite_connection import LockWaitConnection, check_database

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig


_SNAPSHOT = 7
"""Code of LangGraph's full copy of a delta channel, which is stored as its value."""
_AT = "thread_id = ? AND checkpoint_ns = ?"
_HAS_TABLES = "SELECT count(*) = 2 FROM sqlite_master WHERE type = 'table' AND name IN ('checkpoints', 'writes')"
_HAS_PATHS = "SELECT count(*) FROM pragma_table_info('writes') WHERE name = 'task_path'"
_ROW = "checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata"
_NEWEST = f"SELECT {_ROW} FROM checkpoints WHERE {_AT} ORDER BY checkpoint_id DESC LIMIT 1"
_BY_ID = f"SELECT {_ROW} FROM checkpoints WHERE {_AT} AND checkpoint_id = ?"
_FIRST = f"SELECT min(checkpoint_id) FROM checkpoints WHERE {_AT}"
_WRITES = f"SELECT task_id, channel, type, value FROM writes WHERE {_AT} AND checkpoint_id = ?"
_PARENT = f"SELECT parent_checkpoint_id, type, checkpoint FROM checkpoints WHERE {_AT} AND checkpoint_id = ?"


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """One checkpoint; the fields are those of LangGraph's `CheckpointTuple`."""

    config: RunnableConfig
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    parent_config: RunnableConfig | None
    """None for a thread's first checkpoint."""
    pending_writes: list[tuple[str, str, Any]]
    """Task id, channel and value, in the order in which LangGraph applies them."""


class SqliteReader:
    """The reader. Objects, such as messages, are read as the dicts of their fields.

    Its asynchronous methods block the event loop while they read.
    """

    def __init__(self, file: Path, connection: sqlite3.Connection) -> None:
        self.database = file
        """The file."""
        self._connection = connection
        self._has_tables = bool(connection.execute(_HAS_TABLES).fetchone()[0])
        has_paths = self._has_tables and connection.execute(_HAS_PATHS).fetchone()[0]
        self._order = f" ORDER BY {'task_path, ' if has_paths else ''}task_id, idx"

    async def aget_tuple(self, config: RunnableConfig) -> StoredCheckpoint | None:
        """Return a checkpoint, by default the newest, if any; raise `NewerFormatError` for a newer version's."""
        if not self._has_tables:
            return None
        at, checkpoint_id = _address(config)
        query = (_BY_ID, (*at, checkpoint_id)) if checkpoint_id else (_NEWEST, at)
        with readable(config), self._snapshot():
            row = self._connection.execute(*query).fetchone()
            if row is None:
                return None
            id_, parent, kind, stored, metadata = row
            described = json.loads(metadata) if metadata else {}
            check_format(described, at[0])
            checkpoint = _loads(kind, stored)
            check_values(checkpoint, described, at[0])
            writes = self._connection.execute(_WRITES + self._order, (*at, id_)).fetchall()
            return StoredCheckpoint(
                config=_config(at, id_),
                checkpoint=checkpoint,
                metadata=described,
                parent_config=_config(at, parent) if parent else None,
                pending_writes=[(task, channel, _loads(form, value)) for task, channel, form, value in writes],
            )

    async def aget_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, Any]:
        """Return, by channel, the `writes` before a checkpoint, oldest first, and the last full copy as `seed`."""
        at, target = _address(config)
        with readable(config), self._snapshot():
            row = self._connection.execute(_BY_ID, (*at, target)).fetchone()
            if row is None:
                raise removed(at[0], target)
            lengths = lengths_of(json.loads(row[4]) if row[4] else {})
            # A pruning may have stored full copies in the checkpoint since it was read, and removed its ancestors.
            copied = _loads(row[2], row[3])["channel_values"]
            found: Any = {
                channel: {"writes": [], "seed": copied[channel]}
                if channel in copied
                else self._history(at, target, channel)
                for channel in channels
            }
            return checked(found, lengths, at[0])

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Let several statements read the file as it is at the first one."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    async def list_threads(
        self, *, group: str | None = None, after: str | None = None, limit: int | None = None
    ) -> list[str]:
        """Return the threads' ids (see `graph_agent.session.history.list_threads`)."""
        return await sqlite_threads(self.database, group, after, limit) if self._has_tables else []

    async def first_checkpoint(self, thread_id: str) -> StoredCheckpoint | None:
        """Return the oldest checkpoint of a thread; None if there is no such thread."""
        at = (thread_id, "")
        (checkpoint_id,) = self._connection.execute(_FIRST, at).fetchone()
        return await self.aget_tuple(_config(at, checkpoint_id)) if checkpoint_id else None

    def _history(self, at: tuple[str, str], target: str, channel: str) -> dict[str, Any]:
        writes: list[list[tuple[str, str, Any]]] = []
        query = f"{_WRITES} AND channel = ?{self._order}"
        seen, checkpoint_id = {target}, self._connection.execute(_PARENT, (*at, target)).fetchone()[0]
        while checkpoint_id and checkpoint_id not in seen:
            seen.add(checkpoint_id)
            row = self._connection.execute(_PARENT, (*at, checkpoint_id)).fetchone()
            if row is None:
                break
            found = self._connection.execute(query, (*at, checkpoint_id, channel))
            writes.append([(task, name, _loads(form, value)) for task, name, form, value in found])
            values = _loads(row[1], row[2])["channel_values"]
            if channel in values:
                return {"writes": _oldest_first(writes), "seed": values[channel]}
            checkpoint_id = row[0]
        return {"writes": _oldest_first(writes)}


@contextmanager
def open_sqlite_reader(path: Path) -> Iterator[SqliteReader]:
    """Open the reader of a file, and close it on exit; `ConfigError` if it cannot be opened, or is no database."""
    check_database(path)
    with closing(LockWaitConnection(path, check_same_thread=False)) as connection:
        connection.execute("PRAGMA query_only = ON")
        yield SqliteReader(path.resolve(), connection)


def _oldest_first(batches: list[list[tuple[str, str, Any]]]) -> list[tuple[str, str, Any]]:
    return [write for batch in reversed(batches) for write in batch]


def _address(config: RunnableConfig) -> tuple[tuple[str, str], str]:
    """Return thread and namespace, and the checkpoint's id; an empty id for the newest checkpoint."""
    at = config["configurable"]
    return (str(at["thread_id"]), at.get("checkpoint_ns", "")), at.get("checkpoint_id") or ""


def _config(at: tuple[str, str], checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": at[0], "checkpoint_ns": at[1], "checkpoint_id": checkpoint_id}}


def _loads(kind: str, stored: bytes) -> Any:
    """Return a stored value; None for a form that the savers of this package do not write."""
    if kind == "json":
        return json.loads(stored)
    try:
        return _unpack(stored) if kind == "msgpack" else None
    except ValueError as error:
        raise UnreadableValueError(f"{type(error).__name__}: {error}") from error


def _unpack(stored: bytes) -> Any:
    return ormsgpack.unpackb(stored, ext_hook=_fields, option=ormsgpack.OPT_NON_STR_KEYS)


def _fields(code: int, stored: bytes) -> Any:
    """Return the fields or arguments of an object, which LangGraph stores as `[module, class, arguments, …]`."""
    value = _unpack(stored)
    return value[2] if code != _SNAPSHOT and isinstance(value, list) and len(value) > 2 else value


_WAIT_S = 30.0
"""Seconds to wait for another process that writes."""
_PUT = "INSERT OR REPLACE INTO store (prefix, key, value) VALUES (?, ?, ?)"


def put_item(file: Path, namespace: tuple[str, ...], key: str, value: Mapping[str, Any]) -> bool:
    """Store an item of plain JSON; return False if the file has no Store yet, raise `sqlite3.Error` if it fails."""
    with closing(sqlite3.connect(file, timeout=_WAIT_S, isolation_level=None)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'store'").fetchone():
            return False
        connection.execute(_PUT, (".".join(namespace), key, json.dumps(value)))
    return True
