"""Keeps facts in LangGraph's Store in SQLite, with sqlite-vec for vectors and FTS5 for words."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiosqlite
from langgraph.store.base import IndexConfig, SearchItem

from graph_agent.base._compat.release import stop_batching
from graph_agent.base._internal.sync_bridge import call_in_thread
from graph_agent.base.errors import ConfigError
from graph_agent.base.sqlite_connection import Patience, check_sqlite_file
from graph_agent.integrations.memory.facts import ROOT, Find
from graph_agent.integrations.memory.sqlite_vectors import CONNECTION
from graph_agent.integrations.memory.words import items_by_key, words_of
from graph_agent.storage.checkpoints.sqlite_saver import SharedSqliteStore

# The rows of `memory_text` have the ids of `memory_keys`: SQLite may renumber the implicit row ids of `store`.
_ID = "(SELECT id FROM memory_keys WHERE prefix = {row}.prefix AND key = {row}.key)"
_NEW, _OLD = _ID.format(row="NEW"), _ID.format(row="OLD")
_STORE_TEXT = f"""
    INSERT OR IGNORE INTO memory_keys (prefix, key) VALUES (NEW.prefix, NEW.key);
    DELETE FROM memory_text WHERE rowid = {_NEW};
    INSERT INTO memory_text (rowid, content) VALUES ({_NEW}, json_extract(NEW.value, '$.content'));
"""
_TEXT_TABLES = f"""
CREATE TABLE IF NOT EXISTS memory_keys (
    id INTEGER PRIMARY KEY, prefix TEXT NOT NULL, key TEXT NOT NULL, UNIQUE (prefix, key)
);
CREATE VIRTUAL TABLE IF NOT EXISTS memory_text USING fts5(content, tokenize = 'porter unicode61 remove_diacritics 2');
CREATE TRIGGER IF NOT EXISTS memory_inserted AFTER INSERT ON store WHEN NEW.prefix GLOB '{ROOT}.*'
BEGIN {_STORE_TEXT} END;
CREATE TRIGGER IF NOT EXISTS memory_updated AFTER UPDATE ON store WHEN NEW.prefix GLOB '{ROOT}.*'
BEGIN {_STORE_TEXT} END;
CREATE TRIGGER IF NOT EXISTS memory_deleted AFTER DELETE ON store WHEN OLD.prefix GLOB '{ROOT}.*'
BEGIN
    DELETE FROM memory_text WHERE rowid = {_OLD};
    DELETE FROM memory_keys WHERE prefix = OLD.prefix AND key = OLD.key;
END;
"""
_SEARCH = """
SELECT memory_keys.key FROM memory_text JOIN memory_keys ON memory_keys.id = memory_text.rowid
WHERE memory_text MATCH ? AND memory_keys.prefix = ? ORDER BY memory_text.rank LIMIT ? OFFSET ?
"""


@asynccontextmanager
async def open_sqlite_facts(path: Path, index: IndexConfig | None) -> AsyncIterator[tuple[FactsInSqlite, Find | None]]:
    """Open the Store of a file for facts, and close it on exit; yield the Store, and its search by words.

    The search is None with an `index`: the Store searches by vectors then.

    Raises:
        ConfigError: The file is not a database of sessions, or its tables cannot be created, e.g. because its SQLite
            has no FTS5.
    """
    await call_in_thread(check_sqlite_file, path)
    async with aiosqlite.connect(path, isolation_level=None, factory=CONNECTION) as connection:
        store = FactsInSqlite(connection, index=index)
        try:
            await store.setup()
        except sqlite3.Error as error:
            raise ConfigError(f"memory: the SQLite of this Python cannot hold it in {path}: {error}.") from error
        try:
            yield store, None if index else store.find
        finally:
            await stop_batching(store)


class FactsInSqlite(SharedSqliteStore):
    """The Store, whose vectors go with their facts, and which indexes the words of facts."""

    async def setup(self) -> None:
        """Create missing tables and triggers; wait while another process creates them, at most `BUSY_S` seconds.

        Also switches on foreign keys, so that vectors are deleted with their items. Raises `sqlite3.Error` if the file
        cannot be written, or its SQLite has no FTS5.
        """
        await super().setup()
        # Vectors reference their items, and SQLite deletes them only with this setting.
        await self._rows("PRAGMA foreign_keys = ON", ())
        retry, made = Patience(), False
        while not made:
            try:
                async with self.lock:
                    await self.conn.executescript(f"BEGIN IMMEDIATE; {_TEXT_TABLES} COMMIT;")
                made = True
            except sqlite3.OperationalError as error:
                if self.conn.in_transaction:
                    await self.conn.rollback()
                await asyncio.sleep(retry.pause_s(error))

    async def find(self, namespace: tuple[str, ...], text: str, limit: int, offset: int) -> list[SearchItem]:
        """Return the items of a namespace that have a word of the text, the best by BM25 first; empty for a text
        without words.

        Args:
            namespace: The namespace.
            text: The text.
            limit: Maximum number of items.
            offset: Number of items to skip.
        """
        if not (words := words_of(text)):
            return []
        match = " OR ".join(f'"{word}"' for word in words)
        values: tuple[Any, ...] = (match, ".".join(namespace), limit, offset)
        return await items_by_key(self, namespace, [row[0] for row in await self._rows(_SEARCH, values)])
