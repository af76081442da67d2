"""An SQLite database locked by another process: one wait, and one line that names the file and the fix."""

from __future__ import annotations

import logging
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.base import sqlite_connection
from graph_agent.base import sqlite_connection as sqlite_files
from graph_agent.base.sqlite_connection import (
    BUSY_S,
    DatabaseLockedError,
    LockWaitConnection,
    check_sqlite_file,
)
from graph_agent.interfaces.cli import app as cli
from graph_agent.interfaces.server.a2a.task_tables import open_task_tables
from graph_agent.persistence import open_saver, open_store


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_connection, "BUSY_S", 1.0)
    monkeypatch.setattr(sqlite_files, "BUSY_S", 1.0)
    monkeypatch.setattr(sqlite_connection, "_NOTICE_S", 0.1)
    monkeypatch.setattr(sqlite_connection, "_failed_waits", {})


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Undoes what a command does to the process's logging."""
    loggers = [logging.getLogger(), logging.getLogger("graph_agent")]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database that is there, and can be read while it is written."""
    with closing(sqlite3.connect(tmp_path / "s.db")) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE said (word TEXT)")
    return tmp_path / "s.db"


@pytest.fixture
def locked(file: Path, short_waits: None) -> Iterator[sqlite3.Connection]:
    """Another connection, in the middle of a transaction."""
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


def complaint(file: Path) -> str:
    return (
        f"db='sqlite:///{file}': the database is locked: another process has a transaction open (waited 1 s). End that "
        f"process or its transaction, and try again; `fuser {file}` shows which processes have the file open."
    )


def test_the_wait_is_half_a_minute() -> None:
    assert BUSY_S == 30


def test_a_write_to_a_locked_database_fails_with_the_file_and_the_fix(
    file: Path, locked: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(LockWaitConnection(file)) as connection, pytest.raises(DatabaseLockedError) as raised:
        connection.execute("INSERT INTO said VALUES ('hello')")

    assert (str(raised.value), [record.message for record in caplog.records]) == (
        complaint(file),
        [f"The database {file} is locked by another process; waiting 1 s at most."],
    )


def test_after_a_lock_timeout_later_waits_are_short_until_a_write_succeeds(
    file: Path, locked: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    insert = "INSERT INTO said VALUES ('hello')"
    with closing(LockWaitConnection(file)) as connection, closing(LockWaitConnection(file)) as another:
        for waiting in (connection, another, connection):
            with pytest.raises(DatabaseLockedError):
                waiting.execute(insert)
        long_waits = len(caplog.records)
        locked.execute("COMMIT")
        another.execute(insert)
        another.commit()
        locked.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseLockedError):
            connection.execute(insert)

    assert (long_waits, len(caplog.records)) == (1, 2)


def test_a_lock_that_is_released_in_time_is_waited_for(
    file: Path, locked: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connection, "BUSY_S", 60.0)
    releasing = threading.Timer(0.3, lambda: locked.execute("COMMIT"))
    releasing.start()
    with closing(LockWaitConnection(file)) as connection:
        connection.executemany("INSERT INTO said VALUES (?)", iter([("one",), ("two",)]))
        connection.commit()
        words = connection.execute("SELECT word FROM said").fetchall()
    releasing.join()

    assert words == [("one",), ("two",)]


def test_a_file_that_cannot_even_be_read_is_reported_as_locked(file: Path, short_waits: None) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode=DELETE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DatabaseLockedError) as raised:
            check_sqlite_file(file)

    assert str(raised.value) == complaint(file)


async def test_a_run_on_a_locked_database_waits_once_and_raises_one_error(
    file: Path, locked: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    locked.execute("COMMIT")
    url = f"sqlite:///{file}"
    async with open_saver(url) as saver, open_store(url) as store:
        model = ScriptedChatModel(["One.", "Two.", "Three."])
        session = Session(create_graph_agent(model, checkpointer=saver, store=store), "s1")
        await session.run("one")
        locked.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseLockedError) as raised:
            await session.run("two")
        locked.execute("COMMIT")
        result = await session.run("three")

    waits = [record for record in caplog.records if "waiting" in record.message]
    assert (str(raised.value), len(waits), result.status) == (complaint(file), 1, "COMPLETED")


@pytest.mark.parametrize("opens", [open_store, open_task_tables])
async def test_tables_that_cannot_be_made_are_waited_for_once(
    opens: Any, file: Path, locked: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Exception, match="the database is locked: another process has a transaction open"):
        async with opens(f"sqlite:///{file}") as opened:
            await opened.setup()

    assert len([record for record in caplog.records if "waiting" in record.message]) == 1


def test_the_command_line_shows_one_line(
    file: Path,
    locked: sqlite3.Connection,
    tmp_path: Path,
    restored_logging: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "agent.yaml").write_text("{name: a, model: 'openai:gpt-4o-mini'}")
    monkeypatch.setenv("DEBUG_MOCK_RESPONSES", '["The answer."]')
    config = ["--config", str(tmp_path / "agent.yaml"), "--db", f"sqlite:///{file}"]
    monkeypatch.setattr(sys, "argv", ["graph-agent", "run", *config, "--log-level", "error", "hi"])

    with pytest.raises(SystemExit) as exited:
        cli.main()

    assert (exited.value.code, capsys.readouterr().err) == (2, f"error: {complaint(file)}\n")
