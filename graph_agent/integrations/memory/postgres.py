"""Keeps facts in LangGraph's Store in PostgreSQL, with pgvector for vectors and `tsvector` for words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from langgraph.store.base import IndexConfig, SearchItem

from graph_agent.base._compat.release import stop_batching
from graph_agent.base._internal.extras import needs_extra
from graph_agent.base._internal.failure_log import get_logger
from graph_agent.integrations.memory.facts import ROOT, Find
from graph_agent.integrations.memory.words import items_by_key, words_of

with needs_extra("A database in PostgreSQL", "postgres"):
    from langgraph.store.postgres.aio import AsyncPostgresStore
    from langgraph.store.postgres.base import PostgresIndexConfig
    from psycopg import AsyncConnection
    from psycopg.rows import DictRow

    from graph_agent.base.postgres_tables import make_tables
    from graph_agent.storage.checkpoints.postgres import STORE_CONNECTIONS, SharedPostgresStore, open_pool

logger = get_logger("graph_agent.memory")

_HAS_VECTORS = "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"
# Without its punctuation: PostgreSQL's parser takes an address or a path as one word, which no word of it finds.
_WORDS = "to_tsvector('english', translate(value ->> 'content', './:@?&=#+~_-', '            '))"
_TEXT_INDEX = f"""
CREATE INDEX IF NOT EXISTS memory_words ON store USING gin ({_WORDS}) WHERE prefix LIKE '{ROOT}.%'
"""
_SEARCH = f"""
SELECT key FROM store, websearch_to_tsquery('english', %s) AS query
WHERE prefix = %s AND prefix LIKE '{ROOT}.%%' AND {_WORDS} @@ query
ORDER BY ts_rank({_WORDS}, query) DESC, updated_at DESC LIMIT %s OFFSET %s
"""


@asynccontextmanager
async def open_postgres_facts(
    url: str, index: IndexConfig | None
) -> AsyncIterator[tuple[FactsInPostgres, Find | None]]:
    """Open the Store of a database for facts, and close it on exit; yield the Store, and its search by words.

    The search is None if the Store searches by vectors, which needs an `index` and the extension pgvector; without the
    extension, a warning is logged.

    Raises:
        ConfigError: The database cannot be reached or used.
    """
    has_vectors = False

    async def make(connection: AsyncConnection[DictRow]) -> None:
        """Create LangGraph's tables, and the index of words."""
        nonlocal has_vectors
        has_vectors = index is not None and await (await connection.execute(_HAS_VECTORS)).fetchone() is not None
        vectors: Any = index if has_vectors else None
        await AsyncPostgresStore(connection, index=vectors).setup()
        await connection.execute(_TEXT_INDEX)

    await make_tables(url, make)
    if index is not None and not has_vectors:
        logger.warning(
            "This PostgreSQL has no extension 'vector', so memory is searched by words; install pgvector there to "
            "search by the embedding model."
        )
    async with open_pool(url, STORE_CONNECTIONS) as pool:
        store = FactsInPostgres(pool, index=cast("PostgresIndexConfig", index) if has_vectors else None)
        try:
            yield store, None if has_vectors else store.find
        finally:
            await stop_batching(store)


class FactsInPostgres(SharedPostgresStore):
    """The Store, with a search by words."""

    async def find(self, namespace: tuple[str, ...], text: str, limit: int, offset: int) -> list[SearchItem]:
        """Return the items of a namespace that have a word of the text, the best first; empty for a text without words.

        Args:
            namespace: The namespace.
            text: The text.
            limit: Maximum number of items.
            offset: Number of items to skip.
        """
        if not (words := words_of(text)):
            return []
        values = [" OR ".join(f'"{word}"' for word in words), ".".join(namespace), limit, offset]
        async with self._pool.connection() as connection:
            rows = await (await connection.execute(_SEARCH, values)).fetchall()
        return await items_by_key(self, namespace, [row["key"] for row in rows])
