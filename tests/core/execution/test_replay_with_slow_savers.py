"""A replay runs the calls of its checkpoint again, also if the saver takes its time to store the fork."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, create_graph_agent
from tests.support.agents import asks, says, thread

SLOW_S = 0.05


class SlowSaver(InMemorySaver):
    """Stores a checkpoint after a while, as a saver over a network does."""

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(SLOW_S)
        return await super().aput(*args, **kwargs)


class SlowBlockingSaver(InMemorySaver):
    """Stores a checkpoint after a while in a thread, as DynamoDB's saver does."""

    def put(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(SLOW_S)
        return super().put(*args, **kwargs)

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(self.put, *args, **kwargs)


@pytest.mark.parametrize("saver", [InMemorySaver, SlowSaver, SlowBlockingSaver])
async def test_each_replayed_checkpoint_runs_its_call_again(saver: type[InMemorySaver]) -> None:
    ran: list[str] = []

    @tool
    def book(room: str) -> str:
        """Book a room."""
        ran.append(room)
        return f"Booked {room}."

    script = [asks(("c1", "book", {"room": "1"})), asks(("c2", "book", {"room": "2"})), "Done."]
    agent = create_graph_agent(ScriptedChatModel(script, cycle=True), [book], checkpointer=saver())
    await agent.ainvoke(says("hi"), thread())
    history = [state async for state in agent.aget_state_history(thread()) if state.next == ("tools",)]

    replayed = []
    for state in history:  # newest first
        ran.clear()
        values = await agent.ainvoke(None, state.config)
        results = {message.text for message in values["messages"] if message.type == "tool"}
        replayed.append((ran[0], results <= {"Booked 1.", "Booked 2."}))

    assert replayed == [("2", True), ("1", True)]
