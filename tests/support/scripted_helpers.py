"""Helpers of the scripted model's tests."""

from __future__ import annotations

import json
from typing import Any, TypedDict

from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from pydantic import BaseModel


def call(name: str = "echo", **extra: Any) -> str:
    return json.dumps({"tool_calls": [{"id": "call_1", "name": name, "arguments": {"text": "hello"}}], **extra})


@tool
def echo(text: str) -> str:
    """Repeat the text."""
    return text


ECHO_SCHEMA = {
    "type": "function",
    "function": {
        "name": "echo",
        "description": "Repeat the text.",
        "parameters": {"properties": {"text": {"type": "string"}}, "required": ["text"], "type": "object"},
    },
}


class Room(BaseModel):
    """A room."""

    name: str
    beds: int


class RoomDict(TypedDict):
    """A room."""

    name: str
    beds: int


async def streamed(model: Runnable[Any, AIMessage]) -> AIMessage:
    whole: Any = None
    async for chunk in model.astream("hi"):
        whole = chunk if whole is None else whole + chunk
    return whole  # type: ignore[no-any-return] # a sum of chunks
