"""Queued writes of a run in SQLite: committed together, in order, and before anything that relies on them."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.core.state.fence import DeferredWrites
from graph_agent.persistence import open_saver
from graph_agent.storage.checkpoints import sqlite_writer
from graph_agent.storage.checkpoints.sqlite_saver import SharedSqliteSaver
from graph_agent.storage.checkpoints.sqlite_writer import Writer
from tests.support.agents import asks, marked, says, thread
from tests.support.committed_steps import Seen, observed_run, types_of

FILE = "s.db"


@pytest.fixture
def endless_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit queued writes only where something requires it, so that their times are deterministic."""
    monkeypatch.setattr(sqlite_writer, "MAX_DELAY_S", 3600.0)


@pytest.fixture
async def saver(tmp_path: Path) -> AsyncIterator[SharedSqliteSaver]:
    async with open_saver(f"sqlite:///{tmp_path / FILE}") as opened:
        assert isinstance(opened, SharedSqliteSaver)
        yield opened


def completed_steps(file: Path) -> list[str]:
    """The types of the messages that other processes read of completed steps, without the user's."""
    with closing(sqlite3.connect(file)) as connection:
        rows = connection.execute(
            "SELECT w.type, w.value FROM writes w WHERE w.channel = 'messages' AND EXISTS"
            " (SELECT 1 FROM checkpoints c WHERE c.parent_checkpoint_id = w.checkpoint_id) ORDER BY w.checkpoint_id"
        ).fetchall()
    return types_of(rows)


async def observed(saver: SharedSqliteSaver, called: list[str], offered: set[str], **options: Any) -> tuple[Seen, int]:
    """Run one call per turn; return the committed messages at each point and at the end, and the number of commits."""
    saver.setup()
    commits: list[str] = []
    saver.conn.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    seen = await observed_run(saver, called, lambda: completed_steps(saver.database), offered, **options)
    saver.conn.set_trace_callback(None)
    return seen, len(commits)


@pytest.mark.usefixtures("endless_delay")
async def test_a_run_that_only_reads_is_committed_at_its_start_and_end(saver: SharedSqliteSaver) -> None:
    seen, commits = await observed(saver, ["read", "read"], {"read"})

    assert (seen, commits) == (
        [
            *[(point, []) for point in ("request", "read", "request", "read", "request", "request")],
            ("end", ["ai", "tool", "ai", "tool", "ai"]),
        ],
        2,
    )


@pytest.mark.usefixtures("endless_delay")
async def test_the_plan_of_a_writing_call_is_committed_with_all_before_it_when_the_call_starts(
    saver: SharedSqliteSaver,
) -> None:
    seen, commits = await observed(saver, ["write", "write"], {"write"})

    assert (seen, commits) == (
        [
            ("request", []),
            ("write", ["ai"]),
            ("request", ["ai"]),
            ("write", ["ai", "tool", "ai"]),
            ("request", ["ai", "tool", "ai"]),
            ("request", ["ai", "tool", "ai"]),
            ("end", ["ai", "tool", "ai", "tool", "ai"]),
        ],
        4,  # the input, one for each call, and the end
    )


@pytest.mark.usefixtures("endless_delay")
async def test_everything_before_a_writing_call_is_committed_before_it_starts(saver: SharedSqliteSaver) -> None:
    seen, commits = await observed(saver, ["read", "write", "read"], {"read", "write"})

    assert (seen, commits) == (
        [
            ("request", []),
            ("read", []),
            ("request", []),
            *[(point, ["ai", "tool", "ai"]) for point in ("write", "request", "read", "request", "request")],
            ("end", ["ai", "tool", "ai", "tool", "ai", "tool", "ai"]),
        ],
        3,
    )


@pytest.mark.usefixtures("endless_delay")
async def test_a_run_with_a_durability_of_its_own_defers_nothing(saver: SharedSqliteSaver) -> None:
    seen, _ = await observed(saver, ["read"], {"read"}, durability="sync")

    assert seen[1:3] == [("read", ["ai"]), ("request", ["ai", "tool"])]


class Count(TypedDict):
    count: int


@pytest.mark.usefixtures("endless_delay")
async def test_a_graph_inside_a_run_keeps_its_own_durability(saver: SharedSqliteSaver) -> None:
    stored: list[int] = []

    def checkpoints() -> int:
        with closing(sqlite3.connect(saver.database)) as connection:
            [[count]] = connection.execute("SELECT count(*) FROM checkpoints WHERE checkpoint_ns <> ''").fetchall()
        return int(count)

    async def first(state: Count) -> Count:
        return {"count": 1}

    async def second(state: Count) -> Count:
        stored.append(checkpoints())
        return {"count": 2}

    inner: StateGraph[Any, Any, Any, Any] = StateGraph(Count)
    inner.add_node("first", first)
    inner.add_node("second", second)
    inner.add_edge(START, "first")
    inner.add_edge("first", "second")
    inner.add_edge("second", END)
    compiled = inner.compile()

    @tool
    async def count() -> str:
        """Count."""
        await compiled.ainvoke({"count": 0}, durability="sync")
        return "counted"

    model = ScriptedChatModel([asks(("1", "count", {})), "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=[marked(count, effect="read")], checkpointer=saver)
    await graph.ainvoke(says("go"), thread())

    assert (stored, checkpoints()) == ([3], 4)


@pytest.fixture
def connection(tmp_path: Path) -> Any:
    with closing(sqlite3.connect(tmp_path / "w.db", check_same_thread=False)) as opened:
        opened.execute("CREATE TABLE words (word TEXT UNIQUE)")
        yield opened


def insert(connection: sqlite3.Connection, word: str) -> Callable[[], None]:
    def job() -> None:
        connection.execute("INSERT INTO words VALUES (?)", (word,))

    return job


def words(connection: sqlite3.Connection) -> list[str]:
    return [word for (word,) in connection.execute("SELECT word FROM words ORDER BY rowid")]


@pytest.mark.usefixtures("endless_delay")
@pytest.mark.parametrize("together", [True, False])
async def test_no_write_of_a_run_is_stored_after_a_failed_one(connection: sqlite3.Connection, together: bool) -> None:
    writer = Writer(connection, threading.Lock(), lambda: None)
    failing, other = DeferredWrites(), DeferredWrites()
    errors: list[str] = []
    for word in ("a", "b", "a", "c"):
        writer.defer(
            insert(connection, f"other {word}" if word == "c" else f"{word}"), failing if word != "c" else other
        )
        if not together:
            await writer.flush()
    try:
        writer.defer(insert(connection, "d"), failing)
    except sqlite3.IntegrityError:
        errors.append("at once")
    for waiting in (failing.flush(), writer.run(insert(connection, "e"), group=failing), other.flush()):
        try:
            await waiting
        except sqlite3.IntegrityError as error:
            errors.append(str(error))
    await writer.aclose()

    refused = "UNIQUE constraint failed: words.word"
    assert (words(connection), errors) == (
        ["a", "b", "other c"],
        [*([] if together else ["at once"]), refused, refused],
    )


async def test_a_deferred_write_is_committed_soon_without_another(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "w.db", check_same_thread=False)) as connection:
        connection.execute("CREATE TABLE words (word TEXT UNIQUE)")
        connection.commit()
        writer = Writer(connection, threading.Lock(), lambda: None)
        stored: list[list[str]] = []
        for word in ("first", "later"):
            writer.defer(insert(connection, word), DeferredWrites())
            async with asyncio.timeout(30):
                with closing(sqlite3.connect(tmp_path / "w.db")) as other:
                    while not (found := words(other)) or found[-1] != word:
                        await asyncio.sleep(0)
            stored.append(found)
        await writer.aclose()

    assert stored == [["first"], ["first", "later"]]


@pytest.mark.usefixtures("endless_delay")
async def test_closing_commits_deferred_writes(connection: sqlite3.Connection) -> None:
    writer = Writer(connection, threading.Lock(), lambda: None)

    writer.defer(insert(connection, "last"), DeferredWrites())
    await writer.aclose()

    assert (words(connection), connection.in_transaction) == (["last"], False)


@pytest.mark.usefixtures("endless_delay")
async def test_many_deferred_writes_are_committed_without_another(connection: sqlite3.Connection) -> None:
    writer = Writer(connection, threading.Lock(), lambda: None)
    group = DeferredWrites()

    for number in range(200):
        writer.defer(insert(connection, str(number)), group)
    async with asyncio.timeout(30):
        while group._done < 64:
            await asyncio.sleep(0)
    await group.flush()
    await writer.aclose()

    assert words(connection) == [str(number) for number in range(200)]
