"""Opens savers, Stores and plan caches by URL; savers read plain types and LangChain messages, and never unpickle."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from graph_agent._compat import close_sqlite_cache
from graph_agent.errors import ConfigError
from graph_agent.persistence.urls import is_postgres, without_password

if TYPE_CHECKING:
    from langgraph.cache.base import BaseCache
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.store.base import BaseStore

logger = logging.getLogger(__name__)

_SQLITE = "sqlite:///"
_MEMORY = "memory:"


class StrictSerializer(JsonPlusSerializer):
    """LangGraph's serializer without the constructors of `langchain_core.load` in JSON data.

    LangGraph writes only msgpack, whose types are checked against its list of safe types. Its JSON reader, kept for old
    checkpoints, constructs any class of langchain-core (`{"lc": 1, "type": "constructor", …}`). This class reads such
    an object as a plain dict and logs a warning.
    """

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return the stored value.

        Raises:
            NotImplementedError: If the data type is not supported, e.g. `pickle`.
        """
        if data[0] == "json":
            return json.loads(data[1], object_hook=_as_plain_data)
        return super().loads_typed(data)


def _as_plain_data(value: dict[str, Any]) -> dict[str, Any]:
    if "lc" in value and value.get("type") == "constructor":
        logger.warning(
            "A checkpoint holds a constructor of %r. It is read as plain data; objects are not constructed from JSON.",
            value.get("id"),
        )
    return value


def strict_serializer() -> StrictSerializer:
    """Return a serializer that restores the types in our checkpoints and refuses all others."""
    return StrictSerializer(allowed_msgpack_modules=None)


@asynccontextmanager
async def open_saver(url: str, folder: Path | None = None) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    """Open a saver by its URL, and close it on exit.

    Args:
        url: `sqlite:///FILE`, relative to `folder` or absolute; `postgresql://…` in libpq's syntax (needs the extra
            `postgres`); or `memory:`.
        folder: Base of relative paths; None for the current folder.

    Raises:
        ConfigError: If the URL is of another kind, or the database cannot be opened.
    """
    if url == _MEMORY:
        yield InMemorySaver(serde=strict_serializer())
        return
    if is_postgres(url):
        from graph_agent.persistence.postgres import open_postgres_saver

        async with open_postgres_saver(url, strict_serializer()) as postgres_saver:
            yield postgres_saver
        return
    path = _file(url, folder)
    from graph_agent.persistence.sqlite_saver import open_sqlite_saver

    async with open_sqlite_saver(path, strict_serializer()) as sqlite_saver:
        yield sqlite_saver


@asynccontextmanager
async def open_store(url: str, folder: Path | None = None) -> AsyncIterator[BaseStore]:
    """Open LangGraph's Store in a database of sessions, and close it on exit.

    Processes steer and stop each other's sessions through the Store.

    Args:
        url: As for `open_saver`; the Store uses the same database over separate connections.
        folder: As for `open_saver`.

    Raises:
        ConfigError: As `open_saver`.
    """
    if url == _MEMORY:
        from langgraph.store.memory import InMemoryStore

        yield InMemoryStore()
        return
    if is_postgres(url):
        from graph_agent.persistence.postgres import open_postgres_store

        async with open_postgres_store(url) as postgres_store:
            yield postgres_store
        return
    path = _file(url, folder)
    from graph_agent.persistence.sqlite_store import open_sqlite_store

    async with open_sqlite_store(path) as store:
        yield store


def check_database_exists(url: str, folder: Path | None = None) -> None:
    """Raise if the URL is that of an SQLite file that does not exist; the file is not created.

    Args:
        url: As for `open_saver`.
        folder: As for `open_saver`.

    Raises:
        ConfigError: If there is no such file, or the URL is of another kind than those of `open_saver`.
    """
    if url == _MEMORY or is_postgres(url):
        return
    path = _file(url, folder)
    if not path.is_file():
        raise ConfigError(
            f"db={url!r}: there is no database {path}; check the path and the current folder. "
            "The first run of an agent creates its database."
        )


def check_cache(url: str) -> str:
    """Return the URL of a cache if it is valid.

    Raises:
        ValueError: If the kind of cache is unknown; the message names the known kinds.
    """
    if url == "memory" or (url.startswith(_SQLITE) and url != _SQLITE):
        return url
    raise ValueError("no such kind of cache; use 'memory' or 'sqlite:///FILE'")


@asynccontextmanager
async def open_cache(url: str, folder: Path | None = None) -> AsyncIterator[BaseCache[Any]]:
    """Open a plan cache by its URL, and close it on exit.

    Args:
        url: `memory`, for the lifetime of the process; or `sqlite:///FILE`, which processes share.
        folder: As for `open_saver`.

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

    path = _file(url, folder, "cache")
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


def _file(url: str, folder: Path | None, field: str = "db") -> Path:
    if not url.startswith(_SQLITE) or url == _SQLITE:
        shown = without_password(url)
        raise ConfigError(
            f"db={shown!r}: no such kind of database; use 'sqlite:///FILE', 'postgresql://…' or 'memory:'."
        )
    path = (folder or Path()) / url.removeprefix(_SQLITE)
    if not path.parent.is_dir():
        raise ConfigError(f"{field}={url!r}: the folder {path.parent} does not exist; create it first.")
    return path
