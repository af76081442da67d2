"""Scripted replies and tools for the agents of most tests."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.tools import BaseTool, tool

ECHO_SCRIPT = [
    '{"tool_calls": [{"id": "call_1", "name": "echo", "arguments": {"text": "hello"}}]}',
    "No more actions.",
    "The echo returned: hello",
]


@tool
def echo(text: str) -> str:
    """Repeat the text."""
    return text


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def marked(given: BaseTool, **marks: Any) -> BaseTool:
    """The same tool with marks, such as `effect="read"`."""
    return given.model_copy(update={"metadata": marks})


def finishing_in_reverse() -> tuple[BaseTool, BaseTool]:
    """Two tools for one wave: `slow` ends only after `fast`."""
    second_done = asyncio.Event()

    @tool
    async def slow() -> str:
        """Finish after the other."""
        await second_done.wait()
        return "slow"

    @tool
    async def fast() -> str:
        """Let the other finish."""
        second_done.set()
        return "fast"

    return slow, fast


def at_step_limit(steps: int, answer: str) -> str:
    """The complete answer at the step limit, from the model's own."""
    return f"Reached maximum reasoning steps ({steps})\n\n{answer}"


def asks(*calls: tuple[str, str, dict[str, Any]], content: str = "") -> str:
    """A scripted reply that asks for calls, each `(id, name, arguments)`."""
    listed = [{"id": id_, "name": name, "arguments": arguments} for id_, name, arguments in calls]
    return json.dumps({"content": content, "tool_calls": listed} if content else {"tool_calls": listed})


def thread(session_id: str = "s1", **config: Any) -> Any:
    """A run's config for one session."""
    return {"configurable": {"thread_id": session_id}, **config}


def says(text: str) -> dict[str, Any]:
    """A run's input: one message of the user's."""
    return {"messages": [("user", text)]}


def kinds(events: list[Any]) -> list[str]:
    """The types of events, in order."""
    return [event["type"] for event in events]


def without_examples(messages: list[Any]) -> list[BaseMessage]:
    """The messages of a request without the examples of calls in text."""
    return [message for message in messages if not (message.id or "").startswith("do-not-render-example-")]


def dialogue(messages: list[Any]) -> list[tuple[str, str]]:
    """A conversation as `(type, text)` pairs."""
    return [(message.type, message.text) for message in messages]
