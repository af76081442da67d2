"""What a database holds for another process at each statement: what remains of it if the process is killed there."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from graph_agent.base.sqlite_connection import LockWaitConnection

Rows = dict[str, list[Any]]
"""Table → its rows, sorted."""

_TABLES = {
    "checkpoints": "*",
    "checkpoint_blobs": "*",
    "checkpoint_writes": "*",
    "writes": "*",
    "store": "prefix, key, value",
}


@contextmanager
def commits(url: str, patch: pytest.MonkeyPatch) -> Iterator[list[Rows]]:
    """Yield the committed rows at each statement of this process, without repetitions; complete after the context."""
    seen: list[Rows] = []

    def look() -> None:
        if (found := committed(url)) not in seen[-1:]:
            seen.append(found)

    with patch.context() as patched:
        kind: Any = psycopg.AsyncConnection if url.startswith("postgres") else LockWaitConnection
        name = "wait" if url.startswith("postgres") else "wait_for"
        before: Callable[..., Any] = getattr(kind, name)

        def observed(*args: Any, **kwargs: Any) -> Any:
            look()
            return before(*args, **kwargs)

        patched.setattr(kind, name, observed)
        yield seen
    look()


def committed(url: str) -> Rows:
    """Return the rows of a database's sessions."""
    if url.startswith("postgres"):
        with psycopg.connect(url, autocommit=True) as server:
            return _rows(server.execute, "SELECT table_name FROM information_schema.tables")
    with closing(sqlite3.connect(f"file:{Path(url.removeprefix('sqlite:///'))}?mode=ro", uri=True)) as file:
        return _rows(file.execute, "SELECT name FROM sqlite_master")


def _rows(execute: Callable[[Any], Any], names: str) -> Rows:
    present = {name for (name,) in execute(names)}
    return {
        table: sorted(map(repr, execute(f"SELECT {columns} FROM {table}").fetchall()))
        for table, columns in _TABLES.items()
        if table in present
    }
