"""Reads sessions from an SQLite file as plain data, without LangGraph, whose import takes longer than the reading.

The reader has the methods of a saver that `session.history` calls. A delta channel, such as an agent's messages, stores
only what each step wrote: its value is rebuilt from the last full copy (the seed) and the writes after it.
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
from graph_agent.base.sqlite_connection import LockWaitConnection, check_sqlite_file
from graph_agent.core.state.lengths import checked, lengths_of, removed
from graph_agent.storage.checkpoints.format import check_format, check_values, readable
from graph_agent.storage.checkpoints.note_rows import sqlite_notes
from graph_agent.storage.checkpoints.session_index import sqlite_threads

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from graph_agent.base.inbox import ControlMessage


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
    """One checkpoint as plain data; the fields are those of LangGraph's `CheckpointTuple`."""

    config: RunnableConfig
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    parent_config: RunnableConfig | None
    """None for a thread's first checkpoint."""
    pending_writes: list[tuple[str, str, Any]]
    """Task id, channel and value, in the order in which LangGraph applies them."""


class SqliteReader:
    """Reads the checkpoints of an SQLite file; objects, such as messages, are read as the dicts of their fields.

    The methods have the names of an asynchronous saver, but block the event loop while they read. `connection` is an
    open connection to `file`; the reader does not close it. A file without LangGraph's tables has no sessions.
    """

    def __init__(self, file: Path, connection: sqlite3.Connection) -> None:
        self.database = file
        """The path of the file."""
        self._connection = connection
        self._has_tables = bool(connection.execute(_HAS_TABLES).fetchone()[0])
        has_paths = self._has_tables and connection.execute(_HAS_PATHS).fetchone()[0]
        self._order = f" ORDER BY {'task_path, ' if has_paths else ''}task_id, idx"

    async def aget_tuple(self, config: RunnableConfig) -> StoredCheckpoint | None:
        """Return the checkpoint with the id in `config`, or without one the newest of its thread and namespace.

        None if it does not exist, or the file has no tables. Raises `NewerFormatError` if a newer version of this
        package stored it, `DamagedSessionError` if it is incomplete or a value cannot be decoded, and `InputError` for
        an id that no database can store.
        """
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
        """Return the histories of delta channels: channel → `{"writes": […], "seed": …}`.

        `writes` are tuples of task id, channel and value, oldest first, from the ancestors of the checkpoint in
        `config`, which must have an id. `seed` is the last full copy, absent if there is none. Raises
        `CheckpointRemovedError` if the checkpoint was removed since it was read, and `DamagedSessionError` if a value
        cannot be decoded. A history that is shorter than recorded raises that error when it is replayed.
        """
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
        """Read the file in one transaction, which is rolled back: all statements of the block see it as the first one
        does.
        """
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    async def list_threads(
        self, *, group: str | None = None, after: str | None = None, limit: int | None = None
    ) -> list[str]:
        """Return ids of threads, newest first by their first checkpoint; empty for a file without tables.

        Args:
            group: Text that the ids must begin with, up to and with their first slash, followed by one more segment;
                empty for ids without a slash, None for all.
            after: Id of the thread after which the list begins; None for the beginning. `KeyError` if it does not
                exist.
            limit: Maximum number of ids; None for no limit.
        """
        return await sqlite_threads(self.database, group, after, limit) if self._has_tables else []

    async def first_checkpoint(self, thread_id: str) -> StoredCheckpoint | None:
        """Return the oldest checkpoint of a thread's root namespace; None if there is no such thread.

        Raises `NewerFormatError` or `DamagedSessionError` if it cannot be read.
        """
        at = (thread_id, "")
        (checkpoint_id,) = self._connection.execute(_FIRST, at).fetchone()
        return await self.aget_tuple(_config(at, checkpoint_id)) if checkpoint_id else None

    async def stored_notes(self, thread_id: str) -> list[ControlMessage]:
        """Return the notes to a session in the file's Store, in the order of sending; empty if it has no Store."""
        return sqlite_notes(self._connection, thread_id)

    def _history(self, at: tuple[str, str], target: str, channel: str) -> dict[str, Any]:
        """Return the history of one channel before the checkpoint `target`: `{"writes": […], "seed": …}`, oldest write
        first.

        `at` are the thread and the namespace. A write is `(task id, channel, value)`. The history goes back to the
        newest ancestor with a full copy of the channel, and the copy is the `seed`. Without such an ancestor it goes
        back to the oldest one, and `seed` is absent. The writes of `target` itself are not included.
        """
        writes: list[list[tuple[str, str, Any]]] = []
        query = f"{_WRITES} AND channel = ?{self._order}"
        seen, checkpoint_id = {target}, self._connection.execute(_PARENT, (*at, target)).fetchone()[0]
        # A damaged file may contain a circle of parents.
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
    """Open the reader of a file, and close it on exit.

    Raises `ConfigError` if the file cannot be opened or is not a database of sessions, and `DatabaseLockedError` if
    another process keeps it locked.
    """
    check_sqlite_file(path)
    with closing(LockWaitConnection(path, check_same_thread=False)) as connection:
        connection.execute("PRAGMA query_only = ON")
        yield SqliteReader(path.resolve(), connection)


def _oldest_first(batches: list[list[tuple[str, str, Any]]]) -> list[tuple[str, str, Any]]:
    """Join batches of writes, of which the newest is first, to one list with the oldest write first."""
    return [write for batch in reversed(batches) for write in batch]


def _address(config: RunnableConfig) -> tuple[tuple[str, str], str]:
    """Return thread and namespace, and the checkpoint's id; an empty id for the newest checkpoint."""
    at = config["configurable"]
    return (str(at["thread_id"]), at.get("checkpoint_ns", "")), at.get("checkpoint_id") or ""


def _config(at: tuple[str, str], checkpoint_id: str) -> RunnableConfig:
    """Return the config that addresses a checkpoint."""
    return {"configurable": {"thread_id": at[0], "checkpoint_ns": at[1], "checkpoint_id": checkpoint_id}}


def _loads(kind: str, stored: bytes) -> Any:
    """Return a stored value; None if its type `kind` is neither `json` nor `msgpack`, which this package never writes.

    Raises `UnreadableValueError` if msgpack is damaged, and `json.JSONDecodeError` for damaged JSON.
    """
    if kind == "json":
        return json.loads(stored)
    try:
        return _unpack(stored) if kind == "msgpack" else None
    except ValueError as error:
        raise UnreadableValueError(f"{type(error).__name__}: {error}") from error


def _unpack(stored: bytes) -> Any:
    """Decode msgpack, in which each stored object becomes its fields; raise `ValueError` if the bytes are damaged."""
    return ormsgpack.unpackb(stored, ext_hook=_fields, option=ormsgpack.OPT_NON_STR_KEYS)


def _fields(code: int, stored: bytes) -> Any:
    """Return the fields or arguments of an object in msgpack, which LangGraph stores as `[module, class, arguments,
    …]`.

    A full copy of a delta channel (code `_SNAPSHOT`) is returned as its value, and so is anything of another form.
    """
    value = _unpack(stored)
    return value[2] if code != _SNAPSHOT and isinstance(value, list) and len(value) > 2 else value


_WAIT_S = 30.0
"""Seconds to wait for another process that writes."""
_PUT = "INSERT OR REPLACE INTO store (prefix, key, value) VALUES (?, ?, ?)"


def put_item(file: Path, namespace: tuple[str, ...], key: str, value: Mapping[str, Any]) -> bool:
    """Store `value`, plain JSON, as the item `key` of a namespace in the Store of a file, over a new connection.

    An existing item is replaced. Returns False if the file has no Store yet; a missing file is created empty. Raises
    `sqlite3.Error` if it cannot be stored, e.g. if another process writes for `_WAIT_S` seconds.
    """
    with closing(sqlite3.connect(file, timeout=_WAIT_S, isolation_level=None)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'store'").fetchone():
            return False
        connection.execute(_PUT, (".".join(namespace), key, json.dumps(value)))
    return True
