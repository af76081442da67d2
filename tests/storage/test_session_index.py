"""Sessions of a database are listed by an index, in pages."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.persistence import open_saver
from graph_agent.session.history import list_threads
from graph_agent.storage.checkpoints.session_index import SQLITE_INDEX
from tests.support.agents import says, thread

THREADS = ["old", "anna/one", "bob/one", "anna/parked/x", "an_a/one", "anna/two", "new"]


@asynccontextmanager
async def sessions(url: str) -> AsyncIterator[Any]:
    """A database with the threads, begun in their order; each has more than one checkpoint."""
    async with open_saver(url) as saver:
        agent = create_graph_agent(ScriptedChatModel(["hello"], cycle=True), checkpointer=saver)
        for name in THREADS:
            await agent.ainvoke(says("hi"), thread(name))
        await agent.ainvoke(says("again"), thread("old"))
        yield saver


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "memory"])
async def test_pages_of_each_group_in_the_order_of_their_beginning(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    urls = {"sqlite": f"sqlite:///{tmp_path / 'a.db'}", "memory": "memory:"}
    url = urls.get(kind) or request.getfixturevalue("postgres_url")
    async with sessions(url) as saver:
        pages = [
            await list_threads(saver),
            await list_threads(saver, group="anna/"),
            await list_threads(saver, group="anna/", limit=1),
            await list_threads(saver, group="anna/", after="anna/two", limit=5),
            await list_threads(saver, group=""),
            await list_threads(saver, group="", after="new"),
            await list_threads(saver, group="nobody/"),
        ]
        with pytest.raises(KeyError):
            await list_threads(saver, after="unknown")
    assert pages == [
        THREADS[::-1],
        ["anna/two", "anna/one"],
        ["anna/two"],
        ["anna/one"],
        ["new", "old"],
        ["old"],
        [],
    ]


async def test_a_database_from_before_the_index_gets_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with sessions(url):
        pass
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.execute("DROP INDEX graph_agent_sessions")
    async with open_saver(url) as saver:
        listed = await list_threads(saver, limit=1)
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        indexes = connection.execute("SELECT name FROM sqlite_master WHERE name = 'graph_agent_sessions'").fetchall()
    assert (listed, indexes) == (["new"], [("graph_agent_sessions",)])


def test_a_page_is_read_from_the_index_alone() -> None:
    from graph_agent.storage.checkpoints.session_index import _SQLITE_GROUP, _query

    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(
            "CREATE TABLE checkpoints (thread_id TEXT, checkpoint_ns TEXT, checkpoint_id TEXT, "
            "parent_checkpoint_id TEXT, checkpoint BLOB, PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id))"
        )
        connection.execute(SQLITE_INDEX)
        query, values = _query(_SQLITE_GROUP, "anna/", "anna/x", "1ef", 10)
        (plan,) = connection.execute(f"EXPLAIN QUERY PLAN {query}", values).fetchall()
    assert (
        plan[3] == "SEARCH checkpoints USING INDEX graph_agent_sessions (<expr>=? AND (checkpoint_id,thread_id)<(?,?))"
    )
