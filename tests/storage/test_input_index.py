"""An input's checkpoint is found by its id through an index."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from langgraph.checkpoint.sqlite.utils import search_where

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.base.input_ids import INPUT_ID
from graph_agent.persistence import open_saver
from graph_agent.storage.checkpoints.session_index import _NEWEST, SQLITE_INPUT_INDEX
from tests.support.postgres_server import on_postgres


@pytest.mark.parametrize("kind", ["sqlite", "memory", pytest.param("postgres", marks=on_postgres)])
async def test_every_input_of_a_session_is_recognized_by_its_id(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    urls = {"sqlite": f"sqlite:///{tmp_path / 'a.db'}", "memory": "memory:"}
    url = urls.get(kind) or request.getfixturevalue("postgres_url")
    async with open_saver(url) as saver:
        talk = Session(create_graph_agent(ScriptedChatModel(["1", "2", "3"]), checkpointer=saver), "s1")
        other = Session(create_graph_agent(ScriptedChatModel(["other"]), checkpointer=saver), "s2")
        first = [await talk.run(f"input {number}", input_id=f"id {number}") for number in range(3)]

        again = [await talk.run(f"input {number}", input_id=f"id {number}") for number in range(3)]
        elsewhere = await other.run("input 0", input_id="id 0")

    assert (again, [result.answer for result in first], elsewhere.answer) == (first, ["1", "2", "3"], "other")


def test_sqlite_searches_an_input_in_the_index() -> None:
    thread = {"configurable": {"thread_id": "s1", "checkpoint_ns": ""}}
    where, values = search_where(thread, {INPUT_ID: "a"})  # type: ignore[arg-type]  # a dict literal is a RunnableConfig
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(
            "CREATE TABLE checkpoints (thread_id TEXT, checkpoint_ns TEXT, checkpoint_id TEXT, metadata BLOB, "
            "PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id))"
        )
        connection.execute(SQLITE_INPUT_INDEX)
        query = f"EXPLAIN QUERY PLAN SELECT 1 FROM checkpoints {where} ORDER BY checkpoint_id DESC LIMIT 1"
        plan = connection.execute(query, values).fetchall()

    assert [step[3] for step in plan] == [
        "SEARCH checkpoints USING INDEX graph_agent_inputs (thread_id=? AND <expr>=?)"
    ]


@on_postgres
async def test_postgres_searches_an_input_in_the_index(postgres_url: str) -> None:
    async with open_saver(postgres_url):
        pass
    async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
        await connection.execute("SET enable_seqscan = off")
        await connection.execute("SET enable_bitmapscan = off")
        rows = await (await connection.execute(f"EXPLAIN {_NEWEST}", ["s1", "a"])).fetchall()
    plan = " ".join(text for (text,) in rows)

    assert ("graph_agent_inputs" in plan, "Sort" in plan) == (True, False), plan
