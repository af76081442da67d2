"""SQLite files opened by several processes: concurrent writes do not fail."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.store.sqlite.aio import AsyncSqliteStore

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.base import sqlite_connection as sqlite_files
from graph_agent.base.sqlite_connection import LockWaitConnection, Patience
from graph_agent.errors import ConfigError
from graph_agent.interfaces.server.a2a.task_tables import open_task_tables
from graph_agent.persistence import open_cache, open_saver, open_store
from graph_agent.storage.checkpoints.open import open_reader


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


@pytest.mark.parametrize("opens", [open_saver, open_store, open_task_tables])
async def test_concurrent_starts_create_the_tables_once(opens: Any, tmp_path: Path) -> None:
    async def started() -> bool:
        async with opens(f"sqlite:///{tmp_path / 'shared.db'}") as opened:
            if opens is not open_task_tables:
                await (opened.adelete_thread("t") if opens is open_saver else opened.adelete(("a",), "k"))
        return True

    assert await asyncio.gather(*(started() for _ in range(6))) == [True] * 6


def schema(file: Path) -> list[Any]:
    """The tables and indexes of a file, and the versions of its Store."""
    with closing(sqlite3.connect(file)) as connection:
        made = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        has_store = any(name == "store_migrations" for name, _ in made)
        return [made, connection.execute("SELECT v FROM store_migrations").fetchall() if has_store else []]


@pytest.mark.parametrize(("opens", "setting"), [(open_saver, "db"), (open_task_tables, "tasks"), (open_cache, "cache")])
async def test_an_address_without_a_file_is_refused_under_the_name_of_its_setting(opens: Any, setting: str) -> None:
    with pytest.raises(ConfigError) as refused:
        async with opens("sqlite:///"):
            pass

    assert str(refused.value).startswith(f"{setting}='sqlite:///': no such kind of ")


@pytest.mark.parametrize("opens", [open_saver, open_store, open_task_tables, open_cache])
async def test_tables_are_completed_after_a_kill_at_any_statement_of_their_creation(
    opens: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(file: Path) -> list[Any]:
        async with opens(f"sqlite:///{file}") as opened:
            if opens in (open_saver, open_store):
                await (opened.adelete_thread("t") if opens is open_saver else opened.aput(("a",), "k", {}))
        return schema(file)

    copies: list[Path] = []
    wait_for = LockWaitConnection.wait_for

    def copied(connection: LockWaitConnection, *args: Any, **kwargs: Any) -> Any:
        # What a process leaves that is killed now.
        copies.append(tmp_path / str(len(copies)) / "s.db")
        copies[-1].parent.mkdir()
        for name in ("s.db", "s.db-wal", "s.db-journal"):
            if (tmp_path / name).exists():
                shutil.copy(tmp_path / name, copies[-1].parent)
        return wait_for(connection, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(LockWaitConnection, "wait_for", copied)
        whole = await start(tmp_path / "s.db")

    assert [await start(copy) for copy in copies] == [whole] * len(copies)


async def test_a_store_of_which_langgraph_was_killed_during_a_migration_is_opened(tmp_path: Path) -> None:
    async with AsyncSqliteStore.from_conn_string(str(tmp_path / "s.db")) as store:
        await store.setup()
        await store.conn.execute("DELETE FROM store_migrations WHERE v >= 2")
        await store.conn.commit()

    async with open_store(f"sqlite:///{tmp_path / 's.db'}") as opened:
        await opened.aput(("a",), "k", {"v": 1})
        found = await opened.aget(("a",), "k")

    assert found is not None
    assert (found.value, schema(tmp_path / "s.db")[1]) == ({"v": 1}, [(0,), (1,), (2,), (3,), (4,)])


async def test_a_closed_store_leaves_no_task(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    async with open_store(f"sqlite:///{tmp_path / 's.db'}") as store:
        await store.aput(("a",), "k", {})

    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("opens", [open_saver, open_store, open_task_tables])
@pytest.mark.parametrize(
    ("file", "message"),
    [("text", "file is not a database"), (".", "unable to open database file"), ("no/file", "not exist|unable to")],
)
async def test_a_file_that_is_no_database_is_refused(opens: Any, file: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("Dear diary" * 100)

    with pytest.raises(ConfigError, match=message):
        async with opens(f"sqlite:///{tmp_path / file}"):
            pass


@pytest.mark.parametrize("opens", [open_saver, open_store, open_task_tables, open_reader])
async def test_a_file_with_two_names_is_refused_under_each(opens: Any, tmp_path: Path) -> None:
    first, second = tmp_path / "s.db", tmp_path / "t.db"
    async with open_saver(f"sqlite:///{first}") as saver:
        await saver.adelete_thread("t")
        second.hardlink_to(first)
        for name in (second, first):
            with pytest.raises(ConfigError, match="2 names"):
                async with opens(f"sqlite:///{name}"):
                    pass


async def test_a_session_of_another_librarys_saver_is_not_run_in_a_file_with_two_names(tmp_path: Path) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "s.db")) as saver:
        await saver.setup()
        (tmp_path / "t.db").hardlink_to(tmp_path / "s.db")
        session = Session(create_graph_agent(ScriptedChatModel(["Hi."]), checkpointer=saver), "s1")
        with pytest.raises(ConfigError, match="2 names"):
            await session.run("Hello")


@pytest.mark.parametrize("opens", [open_saver, open_store, open_task_tables])
async def test_the_parameters_of_an_address_are_no_part_of_the_file_name(opens: Any, tmp_path: Path) -> None:
    async with opens(f"sqlite:///{tmp_path / 'made.db'}?mode=rwc"):
        pass
    async with opens(f"sqlite:///{tmp_path / 'made.db'}?mode=rw"):
        pass
    unknown = ("made.db?x=1", "made.db?mode=ro", "made.db?", "made.db?mode=rw&x", "new.db?mode=rw")
    for rest in (*unknown, "made.db#frag", "made.db?mode=rw#frag", "made.db#", "m%00.db", "m%ff.db", ":memory:"):
        address = f"sqlite:///{rest}" if rest == ":memory:" else f"sqlite:///{tmp_path / rest}"
        with pytest.raises(ConfigError):
            async with opens(address):
                pass

    assert {name.partition("-")[0] for name in os.listdir(tmp_path)} == {"made.db"}


@pytest.mark.parametrize("opens", [open_saver, open_store, open_task_tables, open_cache])
async def test_percent_escapes_of_an_address_are_decoded(opens: Any, tmp_path: Path) -> None:
    async with opens(f"sqlite:///{tmp_path / '100%25 %C3%BC a%20b%3Fc%23d %zz.db?mode=rwc'}"):
        pass

    assert {name.partition(".db")[0] for name in os.listdir(tmp_path)} == {"100% ü a b?c#d %zz"}


async def test_a_fragment_of_an_address_is_refused_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        async with open_saver("sqlite:///s.db#old"):
            pass

    assert str(refused.value) == (
        "db='sqlite:///s.db#old': the address of a file has no fragment '#old'; write %23 for a '#' in its name."
    )


@pytest.mark.parametrize("opens", [open_saver, open_reader])
async def test_the_database_of_another_program_is_refused(opens: Any, tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE checkpoints (id, name)")

    with pytest.raises(ConfigError) as caught:
        async with opens(f"sqlite:///{file}"):
            pass

    assert str(caught.value) == (
        f"db='sqlite:///{file}': the database is of another program: its table 'checkpoints' holds no sessions. Name a "
        "file of its own, or one that does not exist."
    )
