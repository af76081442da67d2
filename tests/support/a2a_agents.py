"""Agents and tools that tests serve over A2A."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from graph_agent import ScriptedChatModel, create_graph_agent
from tests.support.agents import asks, echo

LOOKING = [asks(("1", "echo", {"text": "hi"}), content="Looking."), "Rain all day."]
"""A script: one call of `echo`, then the answer."""


def weather_agent(script: list[str], **options: Any) -> Any:
    """A scripted agent with the tool `echo` and a saver in memory, unless the options give others."""
    options.setdefault("checkpointer", InMemorySaver())
    options.setdefault("tools", [echo])
    return create_graph_agent(ScriptedChatModel(script), name="weather", **options)


@tool
def book(room: str) -> str:
    """Book a room, once a person agrees."""
    return f"{room}: {interrupt({'question': f'Book {room}?'})}"


class HeldTool:
    """A tool that waits until the test releases it; `begun` is set when it starts."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.let_go = asyncio.Event()
        self._loop = asyncio.get_running_loop()

        @tool
        async def hold() -> str:
            """Wait."""
            self._loop.call_soon_threadsafe(self.begun.set)
            while not self.let_go.is_set():
                await asyncio.sleep(0.01)
            return "held"

        self.tool = hold
