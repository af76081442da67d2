"""Reads and prunes the tables of LangGraph's savers in an SQLite file, over a separate connection."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import ormsgpack
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from graph_agent.base._internal.garbage import paused_collection
from graph_agent.base._internal.sync_bridge import call_in_thread
from graph_agent.base.sqlite_connection import LockWaitConnection, is_locked
from graph_agent.storage.checkpoints.fenced_writes import At, Statement
from graph_agent.storage.checkpoints.pruning import tables
from graph_agent.storage.checkpoints.pruning.plan import Row, Rows
from graph_agent.storage.checkpoints.sqlite_writer import SqliteRecorder

T = TypeVar("T")

_NAMES = {
    "{writes}": "writes",
    "{value}": "value",
    "{json}": "CAST(? AS BLOB)",
    "{list}": "(SELECT value FROM json_each(?))",
}
"""Placeholder of the shared SQL → what SQLite has in its place; a list is passed as JSON."""
_ROWS = (
    "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata FROM checkpoints"
    " WHERE thread_id = ?"
)
_DELETE_ALL = (
    "DELETE FROM checkpoints WHERE thread_id = ?",
    "DELETE FROM writes WHERE thread_id = ?",
    "DELETE FROM store WHERE prefix = ?",
)
_ADD_ITEM = "INSERT INTO store (prefix, key, value) VALUES (?, ?, ?)"
_INCREMENTAL = 2
"""The value of `PRAGMA auto_vacuum` for files from which pages can be freed in small steps."""
_PAGES = 500
"""Pages freed per step; other processes cannot write for about 20 ms."""


class SqliteTables(tables.Tables):
    """The tables in one SQLite file; each method opens a connection of its own and runs in a thread.

    The methods raise `DatabaseLockedError` if another process keeps the file locked, and `sqlite3.Error` if it cannot
    be used.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    async def load(self, thread_id: str) -> dict[str, Rows]:
        """Return namespace → checkpoint id → checkpoint of a thread, all read at one moment; empty for an unknown
        thread.

        Raises `UnreadableCheckpointError` if a checkpoint is not stored as msgpack, is damaged, or is of a newer
        version.
        """

        def load(db: sqlite3.Connection) -> dict[str, Rows]:
            """Read the checkpoints and the sizes of their writes in one transaction."""
            with _transaction(db, "BEGIN"), paused_collection():
                written = tables.written_of(db.execute(_sql(tables.WRITES_BY_CHANNEL), (thread_id,)).fetchall())
                return tables.by_namespace([_row(stored, written) for stored in db.execute(_ROWS, (thread_id,))])

        return await self._in_thread(load)

    async def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query with placeholders; `values` are its parameters in order, a list for each
        `{list}`.
        """
        given = [json.dumps(value) if isinstance(value, list) else value for value in values]
        return await self._in_thread(lambda db: db.execute(_sql(sql), given).fetchall())

    async def apply(
        self,
        statements: Sequence[Statement],
        confirm: tables.Confirm = tables.no_check,
        expected: tables.ThreadState | None = None,
    ) -> None:
        """Call `confirm`, then execute statements in one transaction, which is rolled back if anything fails.

        Raises what `confirm` raises, and `ThreadChangedError` if a thread is not in the `expected` state; None is no
        condition.
        """
        await confirm()  # a lock on a file is not lost within a transaction

        def store(db: sqlite3.Connection) -> None:
            """Execute the statements in a transaction; raise `ThreadChangedError` first if the thread is not as
            expected.
            """
            with _transaction(db):
                if expected is not None:
                    found = db.execute(tables.EXTENT, (expected.id,)).fetchone()
                    if found != (expected.newest, expected.number):
                        raise tables.ThreadChangedError
                for sql, rows in statements:
                    db.executemany(_sql(sql), rows)

        await self._in_thread(store)

    def cleaning(self, at: At) -> list[Statement]:
        """Return an empty list: in SQLite, each checkpoint holds its own values."""
        return []

    async def unused_bytes(self, at: At, gone: Sequence[str]) -> int:
        """Return 0: in SQLite, each checkpoint holds its own values."""
        return 0

    def recorder(self, serde: SerializerProtocol) -> tuple[BaseCheckpointSaver[Any], list[Statement]]:
        """Return a saver that stores nothing, and the list to which its blocking writes append their statements."""
        recorder = SqliteRecorder(serde)
        return recorder, recorder.statements

    async def replace(
        self, thread_id: str, statements: Sequence[Statement], prefix: str, items: Sequence[tuple[str, Any]]
    ) -> None:
        """Delete a thread and the items of a namespace of the Store (`prefix`, joined by points), and store new ones.

        `statements` store the new checkpoints and writes, `items` are keys and JSON values. All is one transaction.
        """
        deletions = [(sql, [(key,)]) for sql, key in zip(_DELETE_ALL, (thread_id, thread_id, prefix), strict=True)]
        added = [(prefix, key, json.dumps(value)) for key, value in items]
        await self.apply([*deletions, *statements, (_ADD_ITEM, added)])

    async def size(self) -> int:
        """Return the bytes of the file and its write-ahead log."""
        files = (self._file, self._file.with_name(self._file.name + "-wal"))
        return await call_in_thread(lambda: sum(file.stat().st_size for file in files if file.exists()))

    async def reclaim(self, is_idle: Callable[[], Awaitable[bool]]) -> None:
        """Free unused pages in small steps if the file supports it; else rewrite the whole file if `is_idle` returns
        True.

        Stops without an error when another connection writes.
        """
        in_steps = await self._in_thread(lambda db: db.execute("PRAGMA auto_vacuum").fetchone()[0] == _INCREMENTAL)
        idle = in_steps or await is_idle()
        await self._in_thread(lambda db: _reclaim(db, idle=idle))

    async def _in_thread(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call `work` with a new connection, in a thread."""
        return await call_in_thread(lambda: self._with_connection(work))

    def _with_connection(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call `work` with a new connection, and close it."""
        with closing(LockWaitConnection(self._file, isolation_level=None, check_same_thread=False)) as connection:
            return work(connection)


def _sql(sql: str) -> str:
    """Replace the placeholders of the shared SQL, such as `{writes}`, by what SQLite has."""
    for name, own in _NAMES.items():
        sql = sql.replace(name, own)
    return sql


def _row(stored: tuple[Any, ...], written: tables.Written) -> tuple[str, Row]:
    """Return the namespace and the checkpoint of a row of `_ROWS`; `written` are the sizes of all writes of the thread.

    Raises `UnreadableCheckpointError` if the checkpoint is not stored as msgpack, is damaged, or is of a newer version,
    and `ValueError` if its metadata is no JSON.
    """
    namespace, id_, parent, kind, blob, metadata = stored
    checkpoint = _unpack(kind, blob)
    known = json.loads(metadata) if metadata else {}
    return namespace, Row(
        id=id_,
        parent=parent or None,
        ts=checkpoint.get("ts") or "",
        metadata=known,
        values=frozenset(checkpoint.get("channel_values") or ()),
        deltas=tables.known_deltas(known, is_agents="loop" in (checkpoint.get("channel_versions") or ())),
        size=len(blob) + len(metadata or b""),
        writes=written.get((namespace, id_), {}),
    )


def _unpack(kind: str, blob: bytes) -> Any:
    """Decode a stored checkpoint; objects in it, such as messages, become None. `kind` is the stored type.

    Raises `UnreadableCheckpointError` if it is not msgpack, or damaged.
    """
    if kind != "msgpack":
        raise tables.UnreadableCheckpointError(
            f"its checkpoints are stored as {kind!r}, and only 'msgpack' can be pruned"
        )
    try:
        return ormsgpack.unpackb(blob, ext_hook=lambda code, data: None, option=ormsgpack.OPT_NON_STR_KEYS)
    except ValueError as error:
        raise tables.UnreadableCheckpointError(f"one of its checkpoints is damaged: {error}") from error


def _reclaim(db: sqlite3.Connection, *, idle: bool) -> None:
    """Free unused pages in small steps, and shorten the write-ahead log.

    A file that cannot free single pages is rewritten if `idle`, and can free them from then on; otherwise only its log
    is shortened. Returns without an error if another connection holds a lock.
    """
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
    """Begin a transaction with the statement `begin`; commit on exit, or roll back after an exception."""
    db.execute(begin)
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # SQLite itself rolls back after some errors, such as a full disk.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
