"""Runs that a server for `langgraph.json` dispatches: they have an id, and may be delivered to two processes."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import typing
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.core.state import registry as dispatch
from graph_agent.errors import InputSupersededError, SessionBusyError, SessionLostError
from tests.support.agents import asks, dialogue, says, thread
from tests.support.gates import Gate, gated_tool
from tests.support.result_texts import UNKNOWN

ROOT = Path(__file__).parents[3]


def of_server(run_id: str) -> RunnableConfig:
    """The config of a run that a server has dispatched."""
    return {"configurable": {**thread()["configurable"], "run_id": run_id}, "metadata": {"run_id": run_id}}


def gated_agent(gate: Gate, *replies: Any) -> Any:
    return create_graph_agent(ScriptedChatModel([*replies]), tools=[gated_tool(gate)], checkpointer=InMemorySaver())


WORK = asks(("1", "work", {}))


async def test_a_dispatched_run_waits_for_the_run_before_it() -> None:
    gate = Gate()
    graph = gated_agent(gate, WORK, "No more actions.", "First.", "No more actions.", "Second.")
    first = asyncio.create_task(graph.ainvoke(says("one"), of_server("r1")))
    await gate.reached()
    second = asyncio.create_task(graph.ainvoke(says("two"), of_server("r2")))
    with pytest.raises(SessionBusyError):
        await graph.ainvoke(says("a run without an id"), thread())
    gate.open()
    await asyncio.gather(first, second)

    conversation = dialogue((await graph.aget_state(thread())).values["messages"])
    assert [each for each in conversation if each[0] in ("human", "ai") and each[1]] == [
        ("human", "one"),
        ("ai", "First."),
        ("human", "two"),
        ("ai", "Second."),
    ]


async def test_a_dispatched_run_is_refused_if_its_session_does_not_become_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "DISPATCH_S", 0.1)
    gate = Gate()
    graph = gated_agent(gate, WORK, "No more actions.", "First.")
    first = asyncio.create_task(graph.ainvoke(says("one"), of_server("r1")))
    await gate.reached()

    with pytest.raises(SessionBusyError):
        await graph.ainvoke(says("two"), of_server("r2"))

    gate.open()
    await first


async def test_a_run_that_is_delivered_again_is_resumed() -> None:
    gate = Gate()
    graph = gated_agent(gate, WORK, "No more actions.", "First.")
    first = asyncio.create_task(graph.ainvoke(says("one"), of_server("r1")))
    await gate.reached()
    first.cancel()
    await asyncio.wait([first])
    await graph.ainvoke(says("one"), of_server("r1"))

    messages = (await graph.aget_state(thread())).values["messages"]
    assert [(message.type, message.text) for message in messages] == [
        ("human", "one"),
        ("ai", ""),
        ("tool", UNKNOWN),
        ("ai", "First."),
    ]


async def test_a_run_that_later_runs_have_followed_is_not_repeated() -> None:
    replies = [reply for number in range(5) for reply in ("No more actions.", f"Answer {number}.")]
    graph = gated_agent(Gate(), *replies)
    for number in range(4):
        await graph.ainvoke(says(f"input {number}"), of_server(f"r{number}"))
    before = (await graph.aget_state(thread())).values["messages"]

    with pytest.raises(InputSupersededError, match="'r1' of session 's1' was delivered before, and later runs"):
        await graph.ainvoke(says("input 1"), of_server("r1"))

    assert (await graph.aget_state(thread())).values["messages"] == before


async def test_the_ids_of_recent_runs_are_few() -> None:
    replies = [reply for number in range(12) for reply in ("No more actions.", f"Answer {number}.")]
    graph = gated_agent(Gate(), *replies)
    for number in range(12):
        await graph.ainvoke(says(f"input {number}"), of_server(f"r{number}"))

    metadata = (await graph.aget_state(thread())).metadata
    assert metadata[dispatch.RECENT_RUNS] == [f"r{number}" for number in range(3, 11)]


async def _lose() -> None:
    async with dispatch.until_cancelled():
        raise SessionLostError("It is lost.")


async def test_the_loss_of_a_session_is_not_raised_before_the_server_cancels_the_run() -> None:
    run = asyncio.create_task(_lose())
    await asyncio.wait([run], timeout=0.05)
    run.cancel()

    with pytest.raises(asyncio.CancelledError):
        await run


async def test_the_loss_of_a_session_is_raised_if_the_server_does_not_cancel_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "DISPATCH_S", 0)

    with pytest.raises(SessionLostError, match="It is lost"):
        await _lose()


def test_langgraph_json_has_files_and_types_that_every_server_accepts() -> None:
    config = json.loads((ROOT / "langgraph.json").read_text())
    factories: dict[str, Any] = {}
    for name, graph in config["graphs"].items():
        path, _, attribute = graph["path"].partition(":")
        spec = importlib.util.spec_from_file_location(f"served_{name}", ROOT / path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        factories[name] = getattr(module, attribute)
    module_name, _, attribute = config["http"]["app"].partition(":")
    app = getattr(importlib.import_module(module_name), attribute)

    hints = {name: typing.get_type_hints(factory) for name, factory in factories.items()}
    assert (hints, isinstance(app, FastAPI)) == ({"hotel": {}, "payments": {}}, True)
