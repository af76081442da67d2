"""The saver of `sqlite:///` addresses: LangGraph's own, on a thread that commits queued writes together."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.persistence import open_saver
from graph_agent.storage.checkpoints.sqlite_saver import SharedSqliteSaver
from graph_agent.storage.checkpoints.sqlite_writer import Writer
from tests.support.agents import says, thread


def commits(connection: sqlite3.Connection) -> list[str]:
    """The commits on a connection, in order."""
    seen: list[str] = []
    connection.set_trace_callback(lambda statement: seen.append(statement) if statement == "COMMIT" else None)
    return seen


@pytest.fixture
def connection(tmp_path: Path) -> Any:
    with closing(sqlite3.connect(tmp_path / "w.db", check_same_thread=False)) as opened:
        opened.execute("CREATE TABLE said (word TEXT UNIQUE)")
        yield opened


def insert(connection: sqlite3.Connection, word: str) -> Callable[[], str]:
    def errand() -> str:
        connection.execute("INSERT INTO said VALUES (?)", (word,))
        return word

    return errand


async def test_queued_writes_share_a_commit_and_fail_alone(connection: sqlite3.Connection) -> None:
    lock = threading.Lock()
    writer = Writer(connection, lock, lambda: None)
    seen = commits(connection)

    with lock:  # however many of them its thread has taken up by then, the others come together
        first = asyncio.ensure_future(writer.run(insert(connection, "first")))
        others = [asyncio.ensure_future(writer.run(insert(connection, word))) for word in ("a", "b", "a", "c")]
        await asyncio.sleep(0)
    results = await asyncio.gather(first, *others, return_exceptions=True)
    await writer.aclose()

    stored = [word for (word,) in connection.execute("SELECT word FROM said ORDER BY rowid")]
    assert ([type(one).__name__ if isinstance(one, Exception) else one for one in results], stored, len(seen) <= 2) == (
        ["first", "a", "b", "IntegrityError", "c"],
        ["first", "a", "b", "c"],
        True,
    )


async def test_a_failed_commit_fails_every_write_in_it(connection: sqlite3.Connection) -> None:
    writer = Writer(connection, threading.Lock(), lambda: None)
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("CREATE TABLE of (word TEXT REFERENCES said(word) DEFERRABLE INITIALLY DEFERRED)")

    def dangling() -> None:
        connection.execute("INSERT INTO of VALUES ('nobody said this')")

    with pytest.raises(sqlite3.IntegrityError) as error:
        await writer.run(dangling)
    await writer.run(insert(connection, "after"))
    await writer.aclose()

    left = connection.execute("SELECT (SELECT count(*) FROM of), (SELECT group_concat(word) FROM said)").fetchone()
    assert (str(error.value), left) == ("FOREIGN KEY constraint failed", (0, "after"))


def fill(connection: sqlite3.Connection, pages: int = 2) -> None:
    """Limit the growth of a database to so many pages, as on a full disk."""
    [[used]] = connection.execute("PRAGMA page_count").fetchall()
    connection.execute(f"PRAGMA max_page_count={used + pages}")


def outcomes(results: list[Any]) -> list[Any]:
    return [str(one) if isinstance(one, Exception) else one for one in results]


async def together(writer: Writer, lock: threading.Lock, errands: list[tuple[Callable[[], Any], bool]]) -> list[Any]:
    """The outcomes of jobs that the thread runs in one batch, each with whether it writes."""
    with lock:
        waiting = [asyncio.ensure_future(writer.run(errand, writes=writes)) for errand, writes in errands]
        await asyncio.sleep(0)
    return outcomes(await asyncio.gather(*waiting, return_exceptions=True))


FULL = "database or disk is full"


async def test_a_full_disk_fails_every_write_of_the_transaction(connection: sqlite3.Connection) -> None:
    lock = threading.Lock()
    writer = Writer(connection, lock, lambda: None)
    connection.execute("PRAGMA journal_mode=WAL")
    fill(connection)

    def read() -> list[Any]:
        return connection.execute("SELECT word FROM said").fetchall()

    results = await together(
        writer,
        lock,
        [
            (lambda: None, True),  # its thread may take up the first one alone
            (insert(connection, "a"), True),
            (read, False),
            (insert(connection, "x" * 100_000), True),
            (insert(connection, "b"), True),
            (read, False),
        ],
    )
    await writer.aclose()

    stored = [word for (word,) in connection.execute("SELECT word FROM said")]
    assert (results[1:], stored) == ([FULL, FULL, FULL, "b", [("b",)]], ["b"])


async def test_a_write_that_fails_half_way_stores_nothing(connection: sqlite3.Connection) -> None:
    writer = Writer(connection, threading.Lock(), lambda: None)

    def both() -> None:
        connection.execute("INSERT INTO said VALUES ('half')")
        raise UnicodeError("no text")

    results = await asyncio.gather(writer.run(both), writer.run(insert(connection, "whole")), return_exceptions=True)
    await writer.aclose()

    stored = [word for (word,) in connection.execute("SELECT word FROM said")]
    assert (outcomes([*results]), stored) == (["no text", "whole"], ["whole"])


async def test_a_locked_database_is_waited_for_once_per_round(tmp_path: Path) -> None:
    lock = threading.Lock()
    with (
        closing(sqlite3.connect(tmp_path / "w.db", check_same_thread=False, timeout=0.2)) as connection,
        closing(sqlite3.connect(tmp_path / "w.db", isolation_level=None)) as other,
    ):
        connection.execute("CREATE TABLE said (word TEXT UNIQUE)")
        other.execute("BEGIN IMMEDIATE")
        begun: list[str] = []
        connection.set_trace_callback(begun.append)
        writer = Writer(connection, lock, lambda: None)
        errands = [(insert(connection, word), True) for word in "abcdefgh"]
        results = await together(writer, lock, errands)
        other.execute("ROLLBACK")
        after = await writer.run(insert(connection, "after"))
        await writer.aclose()

    waits = begun[: begun.index("INSERT INTO said VALUES ('after')")].count("BEGIN IMMEDIATE")
    assert (results, after, waits <= 3) == (
        ["database is locked"] * 8,
        "after",
        True,
    )


@pytest.mark.parametrize(("sessions", "pages"), [(1, 40), (6, 100), (12, 20), (12, 100), (30, 60)])
async def test_acknowledged_writes_of_a_full_database_are_stored(tmp_path: Path, sessions: int, pages: int) -> None:
    async with open_saver(f"sqlite:///{tmp_path}/s.db") as saver:
        assert isinstance(saver, SharedSqliteSaver)
        graph = create_graph_agent(ScriptedChatModel([f"Answer {'x' * 900}."], cycle=True), checkpointer=saver)
        await graph.ainvoke(says("first"), thread("first"))
        fill(saver.conn, pages)

        async def talk(number: int) -> tuple[int, str]:
            for index in range(100):
                try:
                    await graph.ainvoke(says(f"input {index} of {number}"), thread(str(number)))
                except sqlite3.OperationalError as error:
                    return index, str(error)
            raise AssertionError("the database did not fill up")

        talked = await asyncio.gather(*(talk(number) for number in range(sessions)))
    async with open_saver(f"sqlite:///{tmp_path}/s.db") as saver:
        graph = create_graph_agent(ScriptedChatModel(["After."] * sessions), checkpointer=saver)
        kept = [(await graph.aget_state(thread(str(number)))).values for number in range(sessions)]
        answers = [sum(m.type == "ai" for m in values.get("messages", [])) for values in kept]
        after = [await graph.ainvoke(says("and now?"), thread(str(number))) for number in range(sessions)]

    # An answer whose last checkpoint failed may be there without having been acknowledged, and never the reverse.
    lost = [(runs, kept) for (runs, _), kept in zip(talked, answers, strict=True) if kept < runs]
    assert (lost, {why for _, why in talked}, {result["messages"][-1].text for result in after}) == (
        [],
        {FULL},
        {"After."},
    )


async def test_a_write_cancelled_in_the_queue_does_not_run(connection: sqlite3.Connection) -> None:
    lock = threading.Lock()
    writer = Writer(connection, lock, lambda: None)

    with lock:
        first = asyncio.ensure_future(writer.run(insert(connection, "first")))
        second = asyncio.ensure_future(writer.run(insert(connection, "second")))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
    await first
    await writer.aclose()

    assert [word for (word,) in connection.execute("SELECT word FROM said")] == ["first"]


@pytest.mark.parametrize("used", [True, False])
async def test_a_closed_saver_refuses_requests_instead_of_hanging(tmp_path: Path, used: bool) -> None:
    async with open_saver(f"sqlite:///{tmp_path / 'x.db'}") as saver:
        if used:
            await saver.aget_tuple(thread())
    with pytest.raises(sqlite3.ProgrammingError) as error:
        async with asyncio.timeout(30):
            await saver.aget_tuple(thread())

    assert str(error.value) == "The database is closed, since its saver was closed. Open a new saver."


async def test_sessions_of_one_file_are_read_by_every_entry_point(tmp_path: Path) -> None:
    async with open_saver(f"sqlite:///{tmp_path}/s.db") as saver:
        graph = create_graph_agent(ScriptedChatModel(["One.", "Two.", "Three."]), checkpointer=saver)
        await graph.ainvoke(says("a"), thread("awaited"))
        await asyncio.to_thread(graph.invoke, says("b"), thread("blocking"))
        await graph.ainvoke(says("c"), thread("blocking"))
        found = [state async for state in graph.aget_state_history(thread("blocking"), limit=2)]
        listed = await asyncio.to_thread(lambda: [*graph.get_state_history(thread("blocking"), limit=2)])
        await saver.adelete_thread("awaited")
        left = (await graph.aget_state(thread("awaited"))).values

    texts = [message.text for message in found[0].values["messages"]]
    assert (texts, [one.config for one in found] == [one.config for one in listed], left) == (
        ["b", "Two.", "c", "Three."],
        True,
        {},
    )
