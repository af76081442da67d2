"""Opens savers, Stores and plan caches by URL.

A saver is LangGraph's checkpointer, a Store its `BaseStore`, a plan cache LangGraph's node cache for the node that
plans.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from graph_agent.base._internal.own_files import record_database
from graph_agent.base.database_urls import MEMORY, check_cache, file_of, is_postgres, without_password
from graph_agent.base.errors import ConfigError
from graph_agent.storage.checkpoints.format import guard_reads

if TYPE_CHECKING:
    from langgraph.cache.base import BaseCache
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.store.base import BaseStore

    from graph_agent.storage.checkpoints.serializer import StrictSerializer


def strict_serializer() -> StrictSerializer:
    """Return a serializer that restores the types in checkpoints of this package and refuses all others; it never
    unpickles.
    """
    # Imported here: it loads LangGraph, which reading the sessions of a file does not need.
    from graph_agent.storage.checkpoints.serializer import StrictSerializer

    return StrictSerializer(allowed_msgpack_modules=None)


@asynccontextmanager
async def open_saver(url: str, folder: Path | None = None) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    """Open a saver by its URL, and close it on exit.

    Reads from a database are checked (see `guard_reads`). An SQLite file is recorded as one that tools must not change;
    a missing one is created now and its tables at the first use. The tables in PostgreSQL are created now.

    Args:
        url: `sqlite:///FILE`, relative to `folder` or absolute; `postgresql://…` in libpq's syntax (needs the extra
            `postgres`); or `memory:`, which is lost on exit.
        folder: Folder to which a relative SQLite file refers; None for the current folder.

    Raises:
        ConfigError: The URL is of another kind, or the database cannot be opened.
        DatabaseLockedError: Another process keeps a SQLite file locked.
        ImportError: The extra `postgres` is needed and not installed.
    """
    if url == MEMORY:
        from langgraph.checkpoint.memory import InMemorySaver

        yield InMemorySaver(serde=strict_serializer())
        return
    if is_postgres(url):
        from graph_agent.storage.checkpoints.postgres import open_postgres_saver

        async with open_postgres_saver(url, strict_serializer()) as postgres_saver:
            guard_reads(postgres_saver)
            yield postgres_saver
        return
    path = file_of(url, folder)
    from graph_agent.storage.checkpoints.sqlite_saver import open_sqlite_saver

    record_database(path)
    async with open_sqlite_saver(path, strict_serializer()) as sqlite_saver:
        guard_reads(sqlite_saver)
        yield sqlite_saver


@asynccontextmanager
async def open_reader(url: str) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    """Open a saver for listing sessions and reading histories, and close it on exit.

    For SQLite it is a `SqliteReader`, which loads without LangGraph, reads messages as dicts and cannot write; relative
    files refer to the current folder, and the file must exist. For any other URL it is the saver of `open_saver`.
    Raises `ConfigError` if the URL is of another kind, or the database cannot be opened, and `DatabaseLockedError` if
    another process keeps a SQLite file locked.
    """
    if url == MEMORY or is_postgres(url):
        async with open_saver(url) as saver:
            yield saver
        return
    from graph_agent.storage.checkpoints.sqlite_reader import open_sqlite_reader

    with open_sqlite_reader(file_of(url)) as reader:
        yield cast("BaseCheckpointSaver[Any]", reader)


@asynccontextmanager
async def open_store(url: str, folder: Path | None = None) -> AsyncIterator[BaseStore]:
    """Open LangGraph's Store in a database of sessions, and close it on exit.

    Processes steer and stop each other's sessions through the Store.

    Args:
        url: `sqlite:///FILE`, `postgresql://…` or `memory:`. The Store uses connections of its own to the database of
            the saver with this URL.
        folder: Folder to which a relative SQLite file refers; None for the current folder.

    Raises:
        ConfigError: If the URL is of another kind, or the database cannot be opened.
        DatabaseLockedError: If another process keeps a SQLite file locked.
        ImportError: If the extra `postgres` is needed and not installed.
    """
    if url == MEMORY:
        from langgraph.store.memory import InMemoryStore

        yield InMemoryStore()
        return
    if is_postgres(url):
        from graph_agent.storage.checkpoints.postgres import open_postgres_store

        async with open_postgres_store(url) as postgres_store:
            yield postgres_store
        return
    path = file_of(url, folder)
    from graph_agent.storage.checkpoints.sqlite_saver import open_sqlite_store

    record_database(path)
    async with open_sqlite_store(path) as store:
        yield store


@asynccontextmanager
async def open_cache(url: str, folder: Path | None = None) -> AsyncIterator[BaseCache[Any]]:
    """Open a plan cache by its URL, and close it on exit.

    Args:
        url: `memory`, for the lifetime of the process; or `sqlite:///FILE`, which processes share.
        folder: Folder to which a relative SQLite file refers; None for the current folder.

    Raises:
        ConfigError: If the URL is of another kind, or the file cannot be opened.
    """
    try:
        check_cache(url)
    except ValueError as error:
        raise ConfigError(f"cache={without_password(url)!r}: {error}.") from None
    if url == "memory":
        from langgraph.cache.memory import InMemoryCache

        yield InMemoryCache(serde=strict_serializer())
        return
    from langgraph.cache.sqlite import SqliteCache

    from graph_agent.base._compat.release import close_sqlite_cache

    path = file_of(url, folder, "cache")
    record_database(path)
    try:
        cache = await asyncio.to_thread(lambda: SqliteCache[Any](path=str(path), serde=strict_serializer()))
    except sqlite3.Error as error:
        raise ConfigError(
            f"cache={url!r}: the file {path} cannot be opened: {error}. It must be a database that this user may write."
        ) from None
    try:
        yield cache
    finally:
        await asyncio.to_thread(close_sqlite_cache, cache)
