"""The table of calls that followed, of several processes, and of sessions that were stored before."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from graph_agent import GraphAgent, LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.persistence import open_saver, open_store
from tests.support.postgres_server import on_postgres
from tests.support.warm_process import warm_python

TABLE = ("graph_agent", "calls_that_followed")


def call(name: str, **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"id": "c", "name": name, "args": arguments}])


def reading(name: str) -> BaseTool:
    @tool(name)
    async def read(text: str) -> str:
        """Read."""
        return f"{name} of {text}"

    read.metadata = {"effect": "read"}
    return read


def agent_of(
    saver: BaseCheckpointSaver[Any] | None,
    store: BaseStore | None = None,
    *,
    names: tuple[str, ...] = ("look", "open"),
    **config: Any,
) -> GraphAgent[Any, Any]:
    """An agent that calls its first tool with the quotation of the message, then the others."""
    model = ScriptedChatModel([*(call(name, text="a-1") for name in names), "Done."], cycle=True)
    settings = LoopConfig(**{"predict": "table", **config})
    tools = [reading(name) for name in names]
    return create_graph_agent(model, tools, config=settings, checkpointer=saver, store=store)


async def early_of(session: Any) -> list[dict[str, int]]:
    return [event["early"]["learned"] for event in await session.events() if "learned" in event.get("early", {})]


def seen(store: InMemoryStore) -> dict[str, int]:
    """Context → the inputs that were counted for it, in all rows."""
    counts: dict[str, int] = {}
    for item in store.search(TABLE, limit=1_000):
        if "seen" in item.value:
            counts[item.namespace[-1]] = counts.get(item.namespace[-1], 0) + item.value["seen"]
    return counts


@pytest.mark.parametrize("kind", ["memory", "sqlite", pytest.param("postgres", marks=on_postgres)])
async def test_an_agent_learns_from_sessions_that_were_stored_before_it_predicted(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    urls = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/db"}
    url = urls.get(kind) or request.getfixturevalue("postgres_url")
    async with open_saver(url) as saver, open_store(url) as store:
        before = agent_of(saver, predict=False).session("before")
        for _ in range(2):
            await before.run('Look for "a-1".')
        # The second agent reads what the first has counted from the Store.
        early = []
        for name in ("after", "later"):
            session = agent_of(saver, store).session(name)
            await session.run('Look for "a-1".')
            early.append([each.get("used") for each in await early_of(session)][-1:])
        rows = [item.value["seen"] for item in await store.asearch(TABLE, limit=1_000) if "seen" in item.value]

    # Each of four inputs has three contexts: its begin, and the end of each call.
    assert (early, sum(rows)) == ([[1], [1]], 4 * 3)


async def test_stored_sessions_are_counted_once_and_not_those_of_agents_with_other_tools() -> None:
    saver, store = InMemorySaver(), InMemoryStore()
    for names in (("look", "open"), ("find", "open")):
        await agent_of(saver, predict=False, names=names).session("-".join(names)).run('Look for "a-1".')
    for at in range(3):
        await agent_of(saver, store).session(str(at)).run('Look for "a-1".')

    assert [*seen(store).values()] == [4, 4, 4]


async def test_an_agent_without_a_checkpointer_leaves_stored_sessions_to_others() -> None:
    saver, store = InMemorySaver(), InMemoryStore()
    await agent_of(saver, predict=False).session("before").run('Look for "a-1".')
    await agent_of(None, store).ainvoke({"messages": [("user", 'Look for "a-1".')]})
    await agent_of(saver, store).session("after").run('Look for "a-1".')

    assert [*seen(store).values()] == [3, 3, 3]


async def test_rows_of_ended_processes_are_joined_without_a_loss() -> None:
    store = InMemoryStore()
    await agent_of(None, store).ainvoke({"messages": [("user", 'Look for "a-1".')]})
    rows = [item for item in store.search(TABLE, limit=1_000) if "seen" in item.value]
    for item in rows:
        for at in range(40):
            store.put(item.namespace, f"old {at}", {**item.value, "written_s": 0})
    await agent_of(None, store).ainvoke({"messages": [("user", 'Look for "a-1".')]})

    assert [*seen(store).values()] == [42, 42, 42]
    # The rows of both agents, and the joined one.
    assert len(store.search(TABLE, limit=1_000)) == 3 * len(rows)


async def test_two_processes_that_learn_at_once_lose_no_count(tmp_path: Path) -> None:
    file, inputs = tmp_path / "table.db", 20
    async with open_store(f"sqlite:///{file}"):
        pass  # which makes the file
    command = [warm_python(), "-m", "tests.support.learning_process", str(file), str(inputs)]
    processes = [await asyncio.create_subprocess_exec(*command) for _ in range(2)]
    async with asyncio.timeout(120):
        ended = [await process.wait() for process in processes]
    async with open_store(f"sqlite:///{file}") as store:
        rows = [item.value for item in await store.asearch(TABLE, limit=1_000) if "seen" in item.value]

    assert ended == [0, 0]
    # Each input begins once, and ends after its call.
    assert (len(rows), sum(row["seen"] for row in rows)) == (4, 4 * inputs)
    assert sum(count for row in rows for count in row["counts"].values()) == 2 * inputs
