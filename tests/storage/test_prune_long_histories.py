"""Pruning of long histories, which stay where they are: what it removes, hides and refuses."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import InputError
from graph_agent.persistence import open_saver, prune
from graph_agent.session.importing import export_session, import_session
from tests.support.agents import says, thread
from tests.support.postgres_server import on_postgres

pytestmark = pytest.mark.sampled(2)  # one kind of database for each test, in turn

LONG = "x" * 150_000
"""A reply; eight of them are two parts of a history."""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=on_postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'a.db'}"


def agent(saver: Any, reply: str = LONG) -> Any:
    return create_graph_agent(ScriptedChatModel([reply], cycle=True), checkpointer=saver)


async def grow(saver: Any, inputs: int, *, with_ids: bool = False) -> None:
    session = Session(agent(saver), "s1")
    for number in range(inputs):
        await session.run(f"input {number}", input_id=f"i{number}" if with_ids else None)


async def listed(saver: Any) -> list[str]:
    found = [found async for found in saver.alist({"configurable": {"thread_id": "s1", "checkpoint_ns": ""}})]
    return [each.checkpoint["id"] for each in found]


async def test_a_pruning_leaves_the_history_that_an_earlier_one_joined(url: str) -> None:
    done = []
    async with open_saver(url) as saver:
        for _ in range(3):
            await grow(saver, 8)
            before = await history(saver)
            report = await prune(url, keep_last=1)
            done.append((report, before, await history(saver)))
        again = await prune(url, keep_last=1)
        after = await listed(saver)

    found = [(report.checkpoints > 10, 0 < report.bytes < 200_000, then == now) for report, then, now in done]
    report, _, (events, messages) = done[-1]
    assert (found, again.checkpoints, len(after)) == ([(True, True, True)] * 3, 0, 2)
    assert (len(events), len(messages), report.reasons["the history of later ones"] >= 3) == (96, 48, True)


async def history(saver: Any) -> Any:
    state = (await agent(saver).aget_state(thread())).values
    return await Session(agent(saver), "s1").events(), state["messages"]


async def test_what_only_holds_history_is_neither_listed_nor_continued(url: str) -> None:
    async with open_saver(url) as saver:
        await grow(saver, 8)
        before = await listed(saver)
        await prune(url, keep_last=1)
        after = await listed(saver)
        first = [found.config async for found in saver.alist(thread(), limit=2)]
        rest = [found.config async for found in saver.alist(thread(), before=first[-1], limit=2)]
        gone = [id_ for id_ in before if id_ not in after]
        found = [await saver.aget_tuple(at(id_)) for id_ in gone]
        with pytest.raises(InputError, match="`prune` may have removed it"):
            await agent(saver).ainvoke(says("from there"), at(gone[-1]))
        with pytest.raises(InputError, match="`prune` may have removed it"):
            await agent(saver).aupdate_state(at(gone[-1]), {"messages": [HumanMessage("Hi.")]}, as_node="finalize")

    ids = [config["configurable"]["checkpoint_id"] for config in [*first, *rest]]
    assert (ids, len(after), {*found}) == (after, 2, {None})


@pytest.mark.parametrize("begun", [True, False])
async def test_nothing_starts_from_a_checkpoint_that_was_never_stored(url: str, begun: bool) -> None:
    async with open_saver(url) as saver:
        await grow(saver, int(begun))
        before = await listed(saver)
        for start in (
            lambda graph: graph.ainvoke(says("from there"), at("1f000000")),
            lambda graph: asyncio.to_thread(graph.invoke, says("from there"), at("1f000000")),
            lambda graph: graph.aupdate_state(at("1f000000"), {"messages": [HumanMessage("Hi.")]}, as_node="finalize"),
        ):
            with pytest.raises(InputError, match="has no checkpoint '1f000000'"):
                await start(agent(saver))
        after = await listed(saver)

    assert (after, bool(before)) == (before, begun)


def at(checkpoint_id: str) -> Any:
    return {"configurable": {"thread_id": "s1", "checkpoint_ns": "", "checkpoint_id": checkpoint_id}}


async def test_inputs_with_ids_are_recognized_after_their_checkpoints_were_joined(url: str) -> None:
    async with open_saver(url) as saver:
        for _ in range(2):
            await grow(saver, 8, with_ids=True)
            await prune(url, keep_last=1)
        events = len(await Session(agent(saver), "s1").events())
        repeated = [await Session(agent(saver, "New."), "s1").run(f"input {n}", input_id=f"i{n}") for n in range(8)]
        after = len(await Session(agent(saver), "s1").events())

    assert ({result.answer for result in repeated}, after) == ({LONG}, events)


async def test_a_joined_history_is_exported_and_read_by_langgraphs_saver(tmp_path: Path) -> None:
    url, copy = (f"sqlite:///{tmp_path / name}" for name in ("a.db", "b.db"))
    async with open_saver(url) as saver:
        for _ in range(2):
            await grow(saver, 8)
            await prune(url, keep_last=1)
        events = await Session(agent(saver), "s1").events()
    await import_session(copy, [json.dumps(line) async for line in export_session(url, "s1", all_checkpoints=True)])
    async with open_saver(copy) as saver:
        imported = await Session(agent(saver), "s1").events()
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "a.db")) as saver:
        stock = await Session(agent(saver), "s1").events()
        result = await Session(agent(saver, "Later."), "s1").run("And now?")

    assert (imported == events, stock == events, result.answer) == (True, True, "Later.")


async def test_a_history_with_a_lost_write_is_not_joined(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with open_saver(url) as saver:
        await grow(saver, 8)
        await prune(url, keep_last=1)
        await grow(saver, 4)
    with closing(sqlite3.connect(tmp_path / "a.db")) as database, database:
        lost = "SELECT max(rowid) FROM writes WHERE channel = 'events' AND checkpoint_id < (SELECT max(checkpoint_id)"
        changed = database.execute(f"DELETE FROM writes WHERE rowid = ({lost} FROM checkpoints))").rowcount
        before = database.execute("SELECT count(*) FROM writes").fetchone()
    [session] = (await prune(url, keep_last=1)).sessions
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        after = database.execute("SELECT count(*) FROM writes").fetchone()

    assert (changed, after, "damaged" in (session.skipped or "")) == (1, before, True)
