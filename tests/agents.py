"""What most tests need to build an agent: scripted replies, and tools whose steps a test can wait for."""

from __future__ import annotations

import json
from typing import Any

from langchain_core.tools import tool

ECHO_SCRIPT = [
    '{"tool_calls": [{"id": "call_1", "name": "echo", "arguments": {"text": "hello"}}]}',
    "No more actions.",
    "The echo returned: hello",
]


@tool
def echo(text: str) -> str:
    """Say the text again."""
    return text


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


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


def dialogue(messages: list[Any]) -> list[tuple[str, str]]:
    """A conversation as `(type, text)` pairs."""
    return [(message.type, message.text) for message in messages]
