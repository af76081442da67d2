"""Converts a message's calls between LangChain's form and `Call`."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, InvalidToolCall, ToolCall

from graph_agent._internal.text import clean, to_json_safe
from graph_agent.parsing.json_values import parse_lenient_json
from graph_agent.types import Call

UNNAMED = "unnamed"
"""Name of a call without a name: providers refuse a history with an empty one."""


def calls_of(message: AIMessage) -> list[Call]:
    """Return the structured calls of a message; ids may be empty or duplicate."""
    return [*map(_structured, message.tool_calls), *map(_broken, message.invalid_tool_calls)]


def canonical_calls(calls: list[Call]) -> list[ToolCall]:
    """Convert calls to LangChain's form."""
    return [ToolCall(id=call["id"], name=call["name"], args=call["arguments"], type="tool_call") for call in calls]


def _structured(call: ToolCall) -> Call:
    return checked_call(call["id"] or "", call["name"], call["args"])


def checked_call(id_: str, name: str, arguments: Any) -> Call:
    """Build a call with its arguments as plain JSON; sets `fault` if they are unusable."""
    read: Call = {"id": clean(id_), "name": clean(name) or UNNAMED, "arguments": {}}
    try:
        return {**read, "arguments": to_json_safe(arguments, finite=True)}
    except ValueError as error:
        return {**read, "fault": f"The arguments cannot be used: {error}."}


def _broken(call: InvalidToolCall) -> Call:
    """Convert a call whose arguments the client could not parse: repair them, or set `fault`."""
    raw = call["args"] or ""
    try:
        arguments = parse_lenient_json(raw)
    except ValueError:
        arguments = None
    read = checked_call(call["id"] or "", call["name"] or "", arguments if isinstance(arguments, dict) else {})
    if isinstance(arguments, dict):
        return read
    shown = clean(raw if len(raw) <= 200 else raw[:200] + "…")
    return {**read, "fault": f"The arguments are no JSON object: {shown!r}. Send one JSON object."}
