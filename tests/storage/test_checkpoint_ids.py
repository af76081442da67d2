"""Checkpoint ids with different process clocks: a new checkpoint is always the newest of its thread."""

from __future__ import annotations

import asyncio
import sys
import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from graph_agent import GraphDelegate, ScriptedChatModel, create_graph_agent
from graph_agent.base._compat.checkpoints import raise_checkpoint_id_floor
from graph_agent.persistence import open_saver
from tests.support.agents import asks, dialogue, says, thread
from tests.support.clocks import process_with_clock
from tests.support.postgres_server import on_postgres

KINDS = ["sqlite", "AsyncSqliteSaver", "SqliteSaver", "InMemorySaver"]
POSTGRES_KINDS = ["postgres", "AsyncPostgresSaver", "PostgresSaver"]
BLOCKING = ("SqliteSaver", "PostgresSaver")
BEHIND_S = [-2.0, -30.0]


@asynccontextmanager
async def saver_of(kind: str, file: Path, url: str) -> AsyncIterator[Any]:
    match kind:
        case "sqlite":
            async with open_saver(f"sqlite:///{file}") as saver:
                yield saver
        case "postgres":
            async with open_saver(url) as saver:
                yield saver
        case "AsyncSqliteSaver":
            async with AsyncSqliteSaver.from_conn_string(str(file)) as saver:
                yield saver
        case "AsyncPostgresSaver":
            async with AsyncPostgresSaver.from_conn_string(url) as saver:
                await saver.setup()
                yield saver
        case "SqliteSaver":
            with SqliteSaver.from_conn_string(str(file)) as saver:
                yield saver
        case "PostgresSaver":
            with PostgresSaver.from_conn_string(url) as saver:
                saver.setup()
                yield saver
        case _:
            yield InMemorySaver()


class Driver:
    """Calls a graph by the entry points that its saver has."""

    def __init__(self, saver: Any, *, blocking: bool) -> None:
        self.saver = saver
        self._blocking = blocking

    def agent(self, script: list[str], **options: Any) -> Any:
        return create_graph_agent(ScriptedChatModel(script), checkpointer=self.saver, **options)

    async def run(self, graph: Any, graph_input: Any, config: Any) -> Any:
        if self._blocking:
            return await asyncio.to_thread(graph.invoke, graph_input, config)
        return await graph.ainvoke(graph_input, config)

    async def state(self, graph: Any, config: Any) -> Any:
        return await (asyncio.to_thread(graph.get_state, config) if self._blocking else graph.aget_state(config))

    async def update(self, graph: Any, config: Any, values: Any) -> Any:
        if self._blocking:
            return await asyncio.to_thread(graph.update_state, config, values, "finalize")
        return await graph.aupdate_state(config, values, "finalize")

    async def dialogue_of(self, graph: Any, config: Any) -> list[str]:
        return [text for _, text in dialogue((await self.state(graph, config)).values["messages"])]


@pytest.fixture(params=[*KINDS, *(pytest.param(kind, marks=on_postgres) for kind in POSTGRES_KINDS)])
async def driver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Driver]:
    url = request.getfixturevalue("postgres_url") if request.param in POSTGRES_KINDS else ""
    async with saver_of(request.param, tmp_path / "s.db", url) as saver:
        yield Driver(saver, blocking=request.param in BLOCKING)


@pytest.mark.parametrize("offset_s", BEHIND_S)
async def test_a_run_with_a_slow_clock_is_in_the_history(driver: Driver, offset_s: float) -> None:
    with process_with_clock(0):
        await driver.run(driver.agent(["One."]), says("first"), thread())
    with process_with_clock(offset_s):
        behind = driver.agent(["Two.", "Three."])
        second = await driver.run(behind, says("second"), thread())
        third = await driver.run(behind, says("third"), thread())
    with process_with_clock(0):
        history = await driver.dialogue_of(driver.agent([]), thread())

    assert ([result["messages"][-1].text for result in (second, third)], history) == (
        ["Two.", "Three."],
        ["first", "One.", "second", "Two.", "third", "Three."],
    )


@pytest.mark.parametrize("offset_s", BEHIND_S)
async def test_an_interrupt_is_answered_once_with_a_slow_clock(driver: Driver, offset_s: float) -> None:
    charged: list[str] = []

    @tool
    async def charge() -> str:
        """Charge, when a person agrees."""
        charged.append(str(interrupt("Sure?")))
        return "charged"

    def agent(script: list[str]) -> Any:
        return driver.agent(script, tools=[charge])

    with process_with_clock(0):
        await driver.run(agent([asks(("1", "charge", {}))]), says("go"), thread())
    with process_with_clock(offset_s):
        behind = agent(["No more actions.", "Done."])
        await driver.run(behind, Command(resume="yes"), thread())
        for _ in range(2):
            await driver.run(behind, Command(resume="yes"), thread())
        history = await driver.dialogue_of(agent([]), thread())

    assert (charged, history[-1]) == (["yes"], "Done.")


@pytest.mark.parametrize("graph_input", [says("instead"), None], ids=["new input", "replay"])
async def test_going_back_to_an_older_checkpoint_makes_the_newest(driver: Driver, graph_input: Any) -> None:
    with process_with_clock(0):
        graph = driver.agent(["One.", "Two.", "Three."])
        await driver.run(graph, says("first"), thread())
        older = (await driver.state(graph, thread())).config
        await driver.run(graph, says("second"), thread())
        if graph_input is None:
            older = (await driver.state(graph, older)).parent_config
    with process_with_clock(-30):
        await driver.run(driver.agent(["Else."]), graph_input, older)
        history = await driver.dialogue_of(driver.agent([]), thread())

    assert history == (["first", "One.", "instead", "Else."] if graph_input else ["first", "Else."])


@pytest.mark.parametrize("older", [False, True])
async def test_an_update_with_a_slow_clock_is_the_newest(driver: Driver, older: bool) -> None:
    with process_with_clock(0):
        graph = driver.agent(["One.", "Two."])
        await driver.run(graph, says("first"), thread())
        at = (await driver.state(graph, thread())).config if older else thread()
        await driver.run(graph, says("second"), thread())
    with process_with_clock(-30):
        await driver.update(driver.agent([]), at, {"messages": [AIMessage("Noted.")]})
        history = await driver.dialogue_of(driver.agent([]), thread())

    assert history == (["first", "One."] if older else ["first", "One.", "second", "Two."]) + ["Noted."]


async def test_a_delegates_interrupt_is_answered_once_with_a_slow_clock(driver: Driver) -> None:
    answers: list[str] = []

    @tool
    async def ask() -> str:
        """Ask a person."""
        answers.append(str(interrupt("Which?")))
        return "asked"

    def agent(script: list[str], delegated: list[str]) -> Any:
        inner = create_graph_agent(ScriptedChatModel(delegated), tools=[ask])
        return driver.agent(script, delegates=[GraphDelegate("d", "Asks.", inner)])

    with process_with_clock(0):
        await driver.run(
            agent([asks(("1", "delegate_to_d", {"task": "ask"}))], [asks(("a", "ask", {}))]), says("go"), thread()
        )
    with process_with_clock(-30):
        behind = agent(["No more actions.", "Done."], ["No more actions.", "Asked."])
        result = await driver.run(behind, Command(resume="this"), thread())
        await driver.run(behind, Command(resume="this"), thread())
        history = await driver.dialogue_of(agent([], []), thread())

    assert (answers, result["messages"][-1].text, history[-1]) == (["this"], "Done.", "Done.")


async def test_an_embedded_agent_keeps_a_run_with_a_slow_clock(driver: Driver) -> None:
    def parent(script: list[str]) -> Any:
        graph = StateGraph(MessagesState)
        graph.add_node("agent", create_graph_agent(ScriptedChatModel(script)))
        graph.add_edge(START, "agent")
        graph.add_edge("agent", END)
        return graph.compile(checkpointer=driver.saver)

    with process_with_clock(0):
        await driver.run(parent(["One."]), {"messages": [HumanMessage("first")]}, thread())
    with process_with_clock(-30):
        await driver.run(parent(["Two."]), {"messages": [HumanMessage("second")]}, thread())
        history = await driver.dialogue_of(parent([]), thread())

    assert history == ["first", "One.", "second", "Two."]


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=on_postgres)])
async def test_a_graph_of_another_kind_over_our_saver_waits_for_its_person(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(interrupt("Sure?"))]}

    url = request.getfixturevalue("postgres_url") if kind == "postgres" else ""
    async with saver_of(kind, tmp_path / "s.db", url) as saver:
        builder = StateGraph(MessagesState)
        builder.add_node("ask", ask)
        builder.add_edge(START, "ask")
        graph = builder.compile(checkpointer=saver)
        with process_with_clock(0):
            await graph.ainvoke({"messages": [HumanMessage("first")]}, thread())
            await graph.ainvoke(Command(resume="One."), thread())
        with process_with_clock(-30):
            await graph.ainvoke({"messages": [HumanMessage("second")]}, thread())
            await graph.ainvoke(Command(resume="Two."), thread())
        history = [text for _, text in dialogue((await graph.aget_state(thread())).values["messages"])]

    assert history == ["first", "One.", "second", "Two."]


def test_ids_stay_above_in_every_thread() -> None:
    below: list[str] = []

    def make(offset: int) -> None:
        for count in range(300):
            at = (1 << 59) + count * 1000 + offset
            newest = str(uuid.UUID(int=(at >> 12) << 80 | 6 << 76 | (at & 0xFFF) << 64 | 1 << 63))
            raise_checkpoint_id_floor(newest)
            below.extend(made for made in [str(uuid6())] if made <= newest)

    with process_with_clock(0):
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            threads = [threading.Thread(target=make, args=(offset,)) for offset in range(8)]
            for one in threads:
                one.start()
            for one in threads:
                one.join()
        finally:
            sys.setswitchinterval(interval)

    assert below == []


@pytest.mark.parametrize(
    "checkpoint_id",
    [
        "",
        "1",
        "2024-05-04T06:32:42.235444+00:00",
        "6dd7e2c2-49f4-4cbe-a205-0129d0c3504f",
        "ffffffff-ffff-6fff-bfff-ffffffffffff",
    ],
)
def test_an_id_without_a_timestamp_leaves_the_clock_unchanged(checkpoint_id: str) -> None:
    with process_with_clock(0):
        before = str(uuid6())
        raise_checkpoint_id_floor(checkpoint_id)
        after = str(uuid6())

    assert before < after < "2"
