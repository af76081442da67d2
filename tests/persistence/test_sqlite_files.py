"""SQLite files opened by several processes: concurrent writes do not fail."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from graph_agent.a2a.server.tables import open_tables
from graph_agent.errors import ConfigError
from graph_agent.persistence import sqlite_files
from graph_agent.persistence.open import open_saver, open_store
from graph_agent.persistence.sqlite_files import Patience


@pytest.mark.parametrize(("patience_s", "tries"), [(30.0, 3), (0.0, 1)])
async def test_table_creation_is_retried_while_another_process_creates_them(
    monkeypatch: pytest.MonkeyPatch, patience_s: float, tries: int
) -> None:
    monkeypatch.setattr(sqlite_files, "BUSY_S", patience_s)
    patience, seen = Patience(), ["tried"]

    try:
        while len(seen) < 3:
            patience.pause_s(sqlite3.OperationalError("database is locked"))
            seen.append("tried")
    except sqlite3.OperationalError:
        seen.append("given up")

    assert seen == ["tried"] * tries + ["given up"] * (tries < 3)


def test_errors_unrelated_to_concurrency_are_not_retried(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("Dear diary" * 100)
    with closing(sqlite3.connect(tmp_path / "text")) as connection, pytest.raises(sqlite3.DatabaseError) as caught:
        connection.execute("CREATE TABLE a (b)")

    with pytest.raises(sqlite3.DatabaseError) as raised:
        Patience().pause_s(caught.value)

    assert raised.value is caught.value


@pytest.mark.parametrize("opens", [open_saver, open_store, open_tables])
async def test_concurrent_starts_create_the_tables_once(opens: Any, tmp_path: Path) -> None:
    async def started() -> bool:
        async with opens(f"sqlite:///{tmp_path / 'shared.db'}") as opened:
            if opens is not open_tables:
                await (opened.adelete_thread("t") if opens is open_saver else opened.adelete(("a",), "k"))
        return True

    assert await asyncio.gather(*(started() for _ in range(6))) == [True] * 6


@pytest.mark.parametrize("opens", [open_saver, open_store, open_tables])
@pytest.mark.parametrize(
    ("file", "message"),
    [("text", "file is not a database"), (".", "unable to open database file"), ("no/file", "not exist|unable to")],
)
async def test_a_file_that_is_no_database_is_refused(opens: Any, file: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("Dear diary" * 100)

    with pytest.raises(ConfigError, match=message):
        async with opens(f"sqlite:///{tmp_path / file}"):
            pass
