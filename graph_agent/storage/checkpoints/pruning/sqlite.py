"""Reads and prunes the tables of LangGraph's savers in an SQLite file, over a separate connection."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import ormsgpack
from langgraph.checkpoint.base import BaseCheckpointSaver, DeltaChannelHistory
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.sqlite import SqliteSaver

from graph_agent.base._internal.garbage import paused_collection
from graph_agent.base._internal.sync_bridge import call_in_thread
from graph_agent.base.input_ids import INPUT_ID
from graph_agent.storage.checkpoints.format import JOINED
from graph_agent.storage.checkpoints.pruning.histories import OpaqueSerializer
from graph_agent.storage.checkpoints.pruning.plan import MARK, At, Copies, Mark, Node, ThreadState, config_at
from graph_agent.storage.checkpoints.pruning.tables import (
    LEFTOVER,
    METADATA,
    Batch,
    Confirm,
    Row,
    Statement,
    StoredWrite,
    ThreadChangedError,
    UnreadableCheckpointError,
    no_check,
    nodes_of,
)
from graph_agent.storage.checkpoints.sqlite_connection import LockWaitConnection, is_locked
from graph_agent.storage.checkpoints.sqlite_writer import Recorder

T = TypeVar("T")

_IN = "thread_id = ? AND checkpoint_ns = ?"
_AT = f"{_IN} AND checkpoint_id = ?"
_THREADS = (
    "SELECT c.thread_id, c.newest, c.number, w.value FROM (SELECT thread_id, max(checkpoint_id) AS newest,"
    " count(*) AS number FROM checkpoints GROUP BY thread_id) c LEFT JOIN writes w ON w.thread_id = c.thread_id"
    f" AND w.checkpoint_ns = '' AND w.checkpoint_id = '' AND w.task_id = '{MARK}' AND w.idx = 0"
)
_MARK = (
    "INSERT OR REPLACE INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value)"
    f" VALUES (?, '', '', '{MARK}', 0, '{MARK}', 'json', ?)"
)
_ROWS = (
    "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata FROM checkpoints"
    " WHERE thread_id = ?"
)
_WRITES = (
    "SELECT checkpoint_ns, checkpoint_id, channel, count(*), coalesce(sum(length(value)), 0) FROM writes"
    " WHERE thread_id = ? GROUP BY checkpoint_ns, checkpoint_id, channel"
)
_STORED_WRITES = (
    "SELECT checkpoint_ns, checkpoint_id, task_id, coalesce(task_path, ''), channel, type, value FROM writes"
    " WHERE thread_id = ? ORDER BY checkpoint_ns, checkpoint_id, task_id, idx"
)
_WRITES_OF = (
    "SELECT checkpoint_ns, checkpoint_id, task_id, coalesce(task_path, ''), channel, type, value FROM writes"
    f" WHERE {_IN} AND checkpoint_id IN (SELECT value FROM json_each(?))"
    " AND channel IN (SELECT value FROM json_each(?)) ORDER BY task_path, task_id, idx"
)
_CHECKPOINT = f"SELECT type, checkpoint FROM checkpoints WHERE {_AT}"
_UPDATE = f"UPDATE checkpoints SET checkpoint = ? WHERE {_AT}"
_NEWER = f"SELECT parent_checkpoint_id FROM checkpoints WHERE {_IN} AND checkpoint_id > ?"
_SET_PARENT = f"UPDATE checkpoints SET parent_checkpoint_id = ? WHERE {_AT}"
_DELETE = (f"DELETE FROM writes WHERE {_AT}", f"DELETE FROM checkpoints WHERE {_AT}")
_DELETE_ALL = (
    "DELETE FROM checkpoints WHERE thread_id = ?",
    "DELETE FROM writes WHERE thread_id = ?",
    "DELETE FROM store WHERE prefix = ?",
)
_ADD_ITEM = "INSERT INTO store (prefix, key, value) VALUES (?, ?, ?)"
_DELETE_NOTES = f"DELETE FROM writes WHERE {_AT} AND task_id = ?"
_NOTE = (
    "INSERT INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value)"
    " VALUES (?, ?, '', ?, ?, ?, 'null', x'')"
)
_JOIN = (
    "INSERT INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value)"
    f" VALUES (?, ?, ?, '{JOINED}', ?, ?, ?, ?)"
)
_MARK_JOINED = (
    f"UPDATE checkpoints SET metadata = CAST(json_remove(json_set(CAST(metadata AS TEXT), '$.{JOINED}', json('true')),"
    f" '$.{INPUT_ID}') AS BLOB) WHERE {_AT}"
)
_INCREMENTAL = 2
"""The value of `PRAGMA auto_vacuum` for files from which pages can be freed in small steps."""
_PAGES = 500
"""Pages freed per step; other processes cannot write for about 20 ms."""


class SqliteTables:
    """The tables in one file; each method opens a connection of its own."""

    def __init__(self, file: Path) -> None:
        self._file = file

    async def threads(self) -> list[ThreadState]:
        """Return all threads, by one query."""
        return await self._in_thread(lambda db: [ThreadState(*row) for row in db.execute(_THREADS)])

    async def mark(self, marks: Mapping[str, Mark]) -> None:
        """Store the marks of threads, in one transaction."""
        await self.store([(_MARK, [(id_, mark.to_json()) for id_, mark in marks.items()])])

    async def load(self, thread_id: str) -> dict[str, list[Node]]:
        """Return the checkpoints of a thread by namespace."""
        return await self._in_thread(lambda db: _load(db, thread_id))

    async def stored_writes(self, thread_id: str) -> list[StoredWrite]:
        """Return all writes of a thread; those of one task are in their order."""
        return await self._in_thread(lambda db: [StoredWrite(*row) for row in db.execute(_STORED_WRITES, (thread_id,))])

    async def writes_of(self, at: At, ids: Sequence[str], channels: Sequence[str]) -> list[StoredWrite]:
        """Return the writes of checkpoints to delta channels; those of one checkpoint are in LangGraph's order."""
        values = (*at, json.dumps([*ids]), json.dumps([*channels]))
        return await self._in_thread(lambda db: [StoredWrite(*row) for row in db.execute(_WRITES_OF, values)])

    async def opaque_history(
        self, at: At, checkpoint_id: str, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the history of delta channels, with objects as they are stored."""

        def read(db: sqlite3.Connection) -> Mapping[str, DeltaChannelHistory]:
            with paused_collection():
                saver, config = SqliteSaver(db, serde=OpaqueSerializer()), config_at(at, checkpoint_id)
                return saver.get_delta_channel_history(config=config, channels=channels)

        return await self._in_thread(read)

    def recorder(self, serde: SerializerProtocol) -> tuple[BaseCheckpointSaver[Any], list[Statement]]:
        """Return a saver that stores nothing, and the list of statements that its blocking writes add to."""
        recorder = Recorder(serde)
        return recorder, recorder.statements

    async def replace(
        self, thread_id: str, statements: Sequence[Statement], prefix: str, items: Sequence[tuple[str, Any]]
    ) -> None:
        """Delete a thread and its items in the Store, and store new ones, in one transaction."""

        def replace(db: sqlite3.Connection) -> None:
            with _transaction(db):
                for sql, value in zip(_DELETE_ALL, (thread_id, thread_id, prefix), strict=True):
                    db.execute(sql, (value,))
                for sql, rows in statements:
                    db.executemany(sql, rows)
                db.executemany(_ADD_ITEM, [(prefix, key, json.dumps(value)) for key, value in items])

        await self._in_thread(replace)

    async def store(self, statements: Sequence[Statement], confirm: Confirm = no_check) -> None:
        """Execute statements of a recorder, in one transaction."""
        await confirm()

        def store(db: sqlite3.Connection) -> None:
            with _transaction(db):
                for sql, rows in statements:
                    db.executemany(sql, rows)

        await self._in_thread(store)

    async def add_copies(
        self, at: At, checkpoint_id: str, copies: Copies, *, dry_run: bool, confirm: Confirm = no_check
    ) -> int:
        """Add full copies of channels to a checkpoint; return the bytes by which it grows."""
        await confirm()  # a lock on a file is not lost within a transaction

        def add(db: sqlite3.Connection) -> int:
            with _transaction(db, "BEGIN" if dry_run else "BEGIN IMMEDIATE"):
                kind, before = db.execute(_CHECKPOINT, (*at, checkpoint_id)).fetchone()
                after = _with_values(kind, before, copies)
                if not dry_run:
                    db.execute(_UPDATE, (after, *at, checkpoint_id))
            return len(after) - len(before)

        return await self._in_thread(add)

    async def remove(self, at: At, batch: Batch, newest: str, doomed: set[str], confirm: Confirm = no_check) -> None:
        """Remove checkpoints and their writes, and replace the writes of `batch.joined`, in one transaction."""
        await confirm()

        def remove(db: sqlite3.Connection) -> None:
            with _transaction(db):
                if any(parent in doomed for (parent,) in db.execute(_NEWER, (*at, newest))):
                    raise ThreadChangedError
                for sql in _DELETE:
                    db.executemany(sql, [(*at, id_) for id_ in batch.ids])
                if (head := batch.joined) is not None:
                    db.execute(_DELETE[0], (*at, head.id))
                    db.executemany(_JOIN, [(*at, head.id, number, *row) for number, row in enumerate(head.writes)])
                    db.execute(_MARK_JOINED, (*at, head.id))
                db.executemany(_SET_PARENT, [(parent, *at, id_) for id_, parent in batch.parents.items()])
                db.execute(_DELETE_NOTES, (*at, "", LEFTOVER))
                db.executemany(_NOTE, [(*at, LEFTOVER, number, id_) for number, id_ in enumerate(batch.leftovers)])

        await self._in_thread(remove)

    async def clean(self, at: At, gone: set[str], *, dry_run: bool) -> int:
        """Do nothing: a checkpoint holds its own values."""
        return 0

    async def uncleaned(self, thread_id: str) -> list[str]:
        """Return nothing, as `clean` does nothing."""
        return []

    async def size(self) -> int:
        """Return the bytes of the file and its log."""
        files = (self._file, self._file.with_name(self._file.name + "-wal"))
        return await call_in_thread(lambda: sum(file.stat().st_size for file in files if file.exists()))

    async def reclaim(self, is_idle: Callable[[], Awaitable[bool]]) -> None:
        """Free pages in small steps if the file supports it; else rewrite it if no run is under way."""
        in_steps = await self._in_thread(lambda db: db.execute("PRAGMA auto_vacuum").fetchone()[0] == _INCREMENTAL)
        idle = in_steps or await is_idle()
        await self._in_thread(lambda db: _reclaim(db, idle=idle))

    async def _in_thread(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await call_in_thread(lambda: self._with_connection(work))

    def _with_connection(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with closing(LockWaitConnection(self._file, isolation_level=None, check_same_thread=False)) as connection:
            return work(connection)


def _load(db: sqlite3.Connection, thread_id: str) -> dict[str, list[Node]]:
    with _transaction(db, "BEGIN"), paused_collection():
        written: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
        for namespace, id_, channel, number, size in db.execute(_WRITES, (thread_id,)):
            written.setdefault((namespace, id_), {})[channel] = number, size
        names: dict[frozenset[str], frozenset[str]] = {}
        return nodes_of((_row(stored, names) for stored in db.execute(_ROWS, (thread_id,))), written)


def _row(stored: tuple[Any, ...], names: dict[frozenset[str], frozenset[str]]) -> Row:
    namespace, id_, parent, kind, blob, metadata = stored
    checkpoint = _unpack(kind, blob, lambda code, data: None)
    versions = frozenset(checkpoint.get("channel_versions") or ())
    values = frozenset(checkpoint.get("channel_values") or ())
    known = json.loads(metadata) if metadata else {}
    return Row(
        namespace=namespace,
        id=id_,
        parent=parent,
        ts=checkpoint.get("ts") or "",
        version=checkpoint.get("v") or 1,
        versions=names.setdefault(versions, versions),
        values=names.setdefault(values, values),
        metadata={key: known[key] for key in METADATA if key in known},
        size=len(blob) + len(metadata or b""),
    )


def _with_values(kind: str, blob: bytes, copies: Copies) -> bytes:
    """Return a stored checkpoint with further channel values; all other bytes remain as they are."""
    checkpoint = _unpack(kind, blob, ormsgpack.Ext)
    for channel, (_, stored) in copies.items():
        checkpoint["channel_values"][channel] = _unpack("msgpack", stored, ormsgpack.Ext)
    return ormsgpack.packb(checkpoint, option=ormsgpack.OPT_NON_STR_KEYS)


def _unpack(kind: str, blob: bytes, objects: Callable[[int, bytes], Any]) -> Any:
    """Return stored data; raise `UnreadableCheckpointError` if it is not msgpack, or damaged."""
    if kind != "msgpack":
        raise UnreadableCheckpointError(f"its checkpoints are stored as {kind!r}, and only 'msgpack' can be pruned")
    try:
        return ormsgpack.unpackb(blob, ext_hook=objects, option=ormsgpack.OPT_NON_STR_KEYS)
    except ValueError as error:
        raise UnreadableCheckpointError(f"one of its checkpoints is damaged: {error}") from error


def _reclaim(db: sqlite3.Connection, *, idle: bool) -> None:
    try:
        [[mode]] = db.execute("PRAGMA auto_vacuum").fetchall()
        if mode == _INCREMENTAL:
            while db.execute("PRAGMA freelist_count").fetchone()[0]:
                # `execute` would run one step of the statement, which frees one page.
                db.executescript(f"PRAGMA incremental_vacuum({_PAGES})")
        elif idle:
            # From now on, pages can be freed in small steps.
            db.execute(f"PRAGMA auto_vacuum = {_INCREMENTAL}")
            db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.OperationalError as error:
        if not is_locked(error):
            raise


@contextmanager
def _transaction(db: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    db.execute(begin)
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
