"""Streams show an input and its running model call before the model has replied, and each message before its answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver
from graph_agent.session.results import DelegatePart, EventAdded, Part, RunPart, Token
from tests.support.agents import asks, echo
from tests.support.gates import HeldModel
from tests.support.hooks import Passing
from tests.support.killed_first_call import SESSION, killed

BEGUN = ["user_message", "status"]


def kinds(parts: list[Part] | list[RunPart]) -> list[str]:
    """The events, and the tokens between them as one."""
    found: list[str] = []
    for part in parts:
        kind = part.event["type"] if isinstance(part, EventAdded) else "token" if isinstance(part, Token) else ""
        if kind and found[-1:] != [kind]:
            found.append(kind)
    return found


@pytest.mark.parametrize("number", [1, 2], ids=["first input", "second input"])
@pytest.mark.parametrize(
    "options",
    [{}, {"tools": [echo]}, {"tools": [echo], "hooks": [Passing()]}],
    ids=["no tools", "tools", "hooks"],
)
async def test_an_input_is_streamed_while_its_first_model_call_runs(number: int, options: dict[str, Any]) -> None:
    model = HeldModel(responses=["One.", "Two."], go=asyncio.Event())
    talk = Session(create_graph_agent(model, **options, checkpointer=InMemorySaver()), "s1")
    if number == 2:
        model.go.set()
        await talk.run("before")
        model.go.clear()
    stored = len(await talk.events())

    seen: list[Part] = []
    async with asyncio.timeout(20):
        async for part in talk.stream("go"):
            seen.append(part)
            if isinstance(part, EventAdded) and part.event["type"] == "status":
                model.go.set()

    assert kinds(seen)[:3] == [*BEGUN, "token"]
    assert [part.event for part in seen if isinstance(part, EventAdded)] == (await talk.events())[stored:]


async def test_a_follow_up_is_streamed_before_its_answer() -> None:
    talk = Session(
        create_graph_agent(ScriptedChatModel(["One.", "Two."]), tools=[echo], checkpointer=InMemorySaver()), "s"
    )
    await talk.follow_up("And then?")

    parts = [part async for part in talk.stream("go")]

    assert kinds(parts) == [*BEGUN, "token", "plan", "agent_response", "status"] * 2


async def test_steering_is_streamed_before_the_reply_to_it() -> None:
    @tool
    async def steers() -> str:
        """Steer the session."""
        await talk.steer("Be brief.")
        return "steered"

    model = ScriptedChatModel([asks(("a", "steers", {})), "Brief."])
    talk = Session(create_graph_agent(model, tools=[steers], checkpointer=InMemorySaver()), "s1")

    parts = [part async for part in talk.stream("go")]

    assert kinds(parts)[-5:] == ["steering", "token", "plan", "agent_response", "status"]
    assert [part.event for part in parts if isinstance(part, EventAdded)] == await talk.events()


async def test_a_delegates_task_is_streamed_before_its_answer() -> None:
    guide = create_graph_agent(ScriptedChatModel(["A walk."]), tools=[echo], name="guide")
    model = ScriptedChatModel([asks(("a", "delegate_to_guide", {"task": "Suggest one."})), "Done."])
    delegates = [GraphDelegate("guide", "Knows walks.", guide)]
    talk = Session(create_graph_agent(model, delegates=delegates, checkpointer=InMemorySaver()), "s1")

    parts = [part async for part in talk.stream("go")]

    of_delegate = [part.part for part in parts if isinstance(part, DelegatePart)]
    assert kinds(of_delegate) == [*BEGUN, "token", "plan", "agent_response", "status"]


async def test_input_that_replaces_a_waiting_wave_is_streamed_before_its_answer() -> None:
    model = ScriptedChatModel([asks(("a", "echo", {"text": "x"}), ("b", "echo", {"text": "y"})), "Never mind."])
    agent = create_graph_agent(model, tools=[echo], config=LoopConfig(approve=["echo"]), checkpointer=InMemorySaver())
    talk = Session(agent, "s1")
    await talk.run("go")
    stored = len(await talk.events())

    parts = [part async for part in talk.stream("Stop.")]

    events = [part.event for part in parts if isinstance(part, EventAdded)]
    assert kinds(parts)[:3] == ["tool_result", "user_message", "token"]
    assert events == (await talk.events())[stored:]


async def test_a_resumed_input_is_streamed_before_its_answer(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    await killed(url, 2)

    async with open_saver(url) as saver:
        talk = Session(create_graph_agent(ScriptedChatModel(["Finished."]), tools=[echo], checkpointer=saver), SESSION)
        parts = [part async for part in talk.stream_resume()]
        stored = await talk.events()

    assert kinds(parts) == [*BEGUN, "token", "plan", "agent_response", "status"]
    assert [part.event for part in parts if isinstance(part, EventAdded)] == stored[-5:]


async def test_a_graphs_custom_stream_has_no_early_events() -> None:
    graph = create_graph_agent(ScriptedChatModel(["One."]), tools=[echo])

    assert [each async for each in graph.astream({"messages": [("user", "go")]}, stream_mode="custom")] == []
