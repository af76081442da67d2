"""SQLite files that several processes open: nobody gives up because another one writes."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from graph_agent import sqlite_files
from graph_agent.persistence import open_saver, open_store
from graph_agent.sqlite_files import Patience


async def test_a_session_and_its_store_wait_half_a_minute_for_anothers_write(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"

    async with open_saver(url) as saver, open_store(url) as store:
        opened: list[Any] = [saver, store]
        of_saver = opened[0].conn.execute("PRAGMA busy_timeout").fetchone()
        of_store = await (await opened[1].conn.execute("PRAGMA busy_timeout")).fetchone()

    assert (of_saver, of_store) == ((30_000,), (30_000,))


@pytest.mark.parametrize(("patience_s", "tries"), [(30.0, 3), (0.0, 1)])
async def test_tables_that_another_process_makes_just_now_are_looked_for_again(
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
