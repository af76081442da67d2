"""Where sessions are kept: savers that read plain types and LangChain messages, and never unpickle; and their Store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from graph_agent.db_urls import is_postgres, without_password
from graph_agent.errors import ConfigError

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.store.base import BaseStore

_SQLITE = "sqlite:///"
_MEMORY = "memory:"


def strict_serializer() -> JsonPlusSerializer:
    """A serializer that restores the types a checkpoint of ours holds and refuses to build any other."""
    return JsonPlusSerializer(allowed_msgpack_modules=None)


@asynccontextmanager
async def open_saver(url: str, folder: Path | None = None) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    """Open a saver by its address, and close it on leaving.

    Args:
        url: `sqlite:///FILE`, with a path taken from `folder` unless it is absolute; `postgresql://…`, as libpq has it
            (needs the extra `postgres`); or `memory:`.
        folder: Where relative paths start; None for the current folder.

    Raises:
        ConfigError: On an address of another kind, or a database that cannot be opened.
    """
    if url == _MEMORY:
        yield InMemorySaver(serde=strict_serializer())
        return
    if is_postgres(url):
        from graph_agent.postgres import open_postgres_saver

        async with open_postgres_saver(url, strict_serializer()) as postgres_saver:
            yield postgres_saver
        return
    path = _file(url, folder)
    from graph_agent.sqlite_saver import open_sqlite_saver

    async with open_sqlite_saver(path, strict_serializer()) as sqlite_saver:
        yield sqlite_saver


@asynccontextmanager
async def open_store(url: str, folder: Path | None = None) -> AsyncIterator[BaseStore]:
    """Open LangGraph's Store beside the sessions of a database, and close it on leaving.

    Through it, sessions that another process runs are steered and stopped, with nothing else configured.

    Args:
        url: As for `open_saver`: the store is in the same database, over connections of its own.
        folder: As for `open_saver`.

    Raises:
        ConfigError: As `open_saver`.
    """
    if url == _MEMORY:
        from langgraph.store.memory import InMemoryStore

        yield InMemoryStore()
        return
    if is_postgres(url):
        from graph_agent.postgres import open_postgres_store

        async with open_postgres_store(url) as postgres_store:
            yield postgres_store
        return
    path = _file(url, folder)
    from graph_agent.sqlite_store import open_sqlite_store

    async with open_sqlite_store(path) as store:
        yield store


def _file(url: str, folder: Path | None) -> Path:
    if not url.startswith(_SQLITE) or url == _SQLITE:
        shown = without_password(url)
        raise ConfigError(
            f"db={shown!r}: no such kind of database; use 'sqlite:///FILE', 'postgresql://…' or 'memory:'."
        )
    path = (folder or Path()) / url.removeprefix(_SQLITE)
    if not path.parent.is_dir():
        raise ConfigError(f"db={url!r}: the folder {path.parent} does not exist; create it first.")
    return path
