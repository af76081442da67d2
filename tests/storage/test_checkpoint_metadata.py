"""Checkpoints omit a run's `configurable`, which programs use for secrets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from graph_agent import GraphDelegate, ScriptedChatModel, Session, create_graph_agent
from graph_agent.core.state.lengths import LENGTHS
from graph_agent.persistence import open_saver
from graph_agent.storage.checkpoints.format import FORMAT_KEY
from tests.support.agents import asks, says, thread

CANARY = "canary-5f0d1c77"
NUMBER = 7_300_591_846_264_019
"""So long that no id and no time contains it by chance."""
SECRETS = {"user_token": CANARY, "jira": CANARY, "number": NUMBER, "api_key": CANARY}
"""Values that a program might pass to its tools in `configurable`."""


@asynccontextmanager
async def memory(folder: Path) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    yield InMemorySaver()


@asynccontextmanager
async def own_sqlite(folder: Path) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    async with open_saver(f"sqlite:///{folder / 'agent.db'}") as saver:
        yield saver


@asynccontextmanager
async def langgraphs_sqlite(folder: Path) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    async with AsyncSqliteSaver.from_conn_string(str(folder / "agent.db")) as saver:
        yield saver


Opened = Callable[[Path], AbstractAsyncContextManager[BaseCheckpointSaver[Any]]]


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


async def stored(saver: BaseCheckpointSaver[Any], folder: Path) -> tuple[set[str], str]:
    """The keys of all checkpoints' metadata, and everything that the saver keeps, as text."""
    found = [kept async for kept in saver.alist(None)]
    files = [file.read_bytes().decode("latin-1") for file in files_in(folder)]
    memory = repr(saver.storage) + repr(saver.writes) if isinstance(saver, InMemorySaver) else ""
    return {key for kept in found for key in kept.metadata}, repr(found) + memory + "".join(files)


@pytest.mark.parametrize("opened", [memory, own_sqlite, langgraphs_sqlite], ids=lambda opened: opened.__name__)
async def test_configurable_values_are_not_stored(opened: Opened, tmp_path: Path) -> None:
    seen: list[Any] = []

    @tool
    async def look(config: RunnableConfig) -> str:
        """Look."""
        seen.append({name: config["configurable"].get(name) for name in SECRETS})
        return "looked"

    inner = create_graph_agent(ScriptedChatModel([asks(("2", "look", {})), "No more actions.", "In."]), tools=[look])
    calls = asks(("1", "look", {}), ("3", "delegate_to_r", {"task": "t"}))
    script = [calls, "No more actions.", "Done.", "No more actions.", "Again."]
    async with opened(tmp_path) as saver:
        graph = create_graph_agent(
            ScriptedChatModel(script),
            tools=[look],
            delegates=[GraphDelegate("r", "Researches.", inner)],
            checkpointer=saver,
        )
        config: RunnableConfig = {"configurable": {"thread_id": "s1", **SECRETS}, "metadata": {"purpose": "a test"}}
        await Session(graph, "s1", configurable=SECRETS).run("go")
        await graph.aupdate_state(config, {"messages": [AIMessage("Edited.")]})
        await graph.ainvoke(says("again"), config)
        keys, text = await stored(saver, tmp_path)

    assert (seen, keys & {*SECRETS, "purpose"}, CANARY in text, str(NUMBER) in text) == (
        [SECRETS] * 2,
        {"purpose"},
        False,
        False,
    )
    assert {key for key in keys if key.startswith("graph_agent")} == {FORMAT_KEY, LENGTHS}


async def test_other_graphs_on_the_same_saver_are_as_before() -> None:
    saver = InMemorySaver()
    await create_graph_agent(ScriptedChatModel(["Hello."]), checkpointer=saver).ainvoke(says("hi"), thread("ours"))
    other = StateGraph(MessagesState)
    other.add_node("done", lambda state: {})
    other.add_edge(START, "done")
    plain = other.compile(checkpointer=saver)
    configurable = {"thread_id": "other", "user_token": "kept", "number": 1, "on": True, "none": None, "list": ["kept"]}

    await plain.ainvoke({"messages": []}, {"configurable": {**configurable, "__hidden": "not kept"}})

    # What LangGraph keeps: texts, numbers and booleans, unless the key begins with two underscores.
    found: list[Any] = [kept.metadata async for kept in saver.alist({"configurable": {"thread_id": "other"}})]
    assert [{name: kept[name] for name in kept if name in {*configurable, "__hidden"}} for kept in found] == [
        {"user_token": "kept", "number": 1, "on": True}
    ] * len(found)
    assert found
