"""A database file that is removed or replaced while it is open: nothing is accepted that would be lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.base.sqlite_connection import DatabaseRemovedError, LockWaitConnection
from graph_agent.interfaces.server.a2a.task_tables import open_task_tables
from graph_agent.persistence import open_saver, open_store
from tests.interfaces.server.process import serving
from tests.support.chat_client import CHAT, body, chat


def remove(file: Path) -> None:
    file.unlink()


def replace(file: Path) -> None:
    """Put a copy in its place, as a restored backup."""
    shutil.copyfile(file, file.with_suffix(".copy"))
    os.replace(file.with_suffix(".copy"), file)


def move(file: Path) -> None:
    file.rename(file.with_suffix(".moved"))


@pytest.mark.parametrize("change", [remove, replace, move])
async def test_an_input_is_refused_after_its_database_was_removed(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    file = tmp_path / "s.db"
    async with open_saver(f"sqlite:///{file}") as saver:
        session = Session(create_graph_agent(ScriptedChatModel(["One.", "Two."]), checkpointer=saver), "s")
        first = await session.run("one")
        change(file)

        with pytest.raises(DatabaseRemovedError, match="was removed or replaced while it was open"):
            await session.run("two")

    assert first.answer == "One."


@pytest.mark.parametrize("commit", [lambda db: db.commit(), lambda db: db.execute("COMMIT")], ids=["method", "SQL"])
def test_a_transaction_is_not_committed_after_its_database_was_removed(
    tmp_path: Path, commit: Callable[[LockWaitConnection], object]
) -> None:
    file = tmp_path / "s.db"
    with closing(LockWaitConnection(file)) as db:
        db.execute("CREATE TABLE words (word)")
        db.execute("INSERT INTO words VALUES ('one')")
        file.unlink()

        with pytest.raises(DatabaseRemovedError):
            commit(db)


async def test_a_relative_file_is_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_saver("sqlite:///s.db") as saver:
        session = Session(create_graph_agent(ScriptedChatModel(["One.", "Two."]), checkpointer=saver), "s")
        await session.run("one")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        second = await session.run("two")

    assert second.answer == "Two."


async def test_the_store_refuses_items_after_its_file_was_removed(tmp_path: Path) -> None:
    file = tmp_path / "s.db"
    async with open_store(f"sqlite:///{file}") as store:
        await store.aput(("a",), "one", {"x": 1})
        file.unlink()

        with pytest.raises(DatabaseRemovedError):
            await store.aput(("a",), "two", {"x": 2})


async def test_the_tables_of_a2a_refuse_rows_after_their_file_was_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from a2a.server.context import ServerCallContext
    from a2a.types import Task
    from a2a.utils.errors import InternalError

    file = tmp_path / "s.db"
    async with open_task_tables(f"sqlite:///{file}") as (tasks, _):
        await tasks.save(Task(id="t", context_id="c"), ServerCallContext())
        file.unlink()

        with pytest.raises(InternalError):
            await tasks.save(Task(id="u", context_id="c"), ServerCallContext())

    assert "was removed or replaced" in caplog.text


def test_a_server_whose_database_was_removed_is_not_ready_and_refuses_inputs(tmp_path: Path) -> None:
    with serving(tmp_path, up="/health") as server, server.http() as http:
        before = (chat(http, "s", "hello").status_code, http.get("/health").status_code)
        (tmp_path / "sessions.db").unlink()
        refused = http.post(CHAT, json=body("again"), headers={"X-Session-Id": "s"})
        ready = http.get("/ready")

    assert before == (200, 200)
    assert (refused.status_code >= 500, "was removed" in refused.text) == (True, True)
    assert (ready.status_code, ready.json()["checks"]["database"]) == (503, "failed")
    assert "put the file back" in server.log.read_text()
