"""Interrupts the graph for each client tool, which the caller of a run executes; its result resumes the graph."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from langgraph.types import interrupt
from typing_extensions import TypedDict

from graph_agent.base._internal.text import as_text, to_json_safe
from graph_agent.base.types import Call
from graph_agent.core.state.call_events import CallResult

CLIENT_CALL = "client_tool_call"
"""The `type` of the interrupt's value, which also has the call's `id`, `name` and `arguments`."""

_NOT_FIRST = (
    "It did not run: tools of this kind are called one at a time. Wait for the other's result, and call this one again "
    "if it is still wanted."
)


class ClientResult(TypedDict):
    """The value that resumes the interrupt of a client tool call."""

    content: str | list[Any]
    """Text, or LangChain content blocks."""
    status: str
    """`success`, or `error` if the tool failed."""


def call_client_tool(call: Call) -> CallResult:
    """Interrupt the graph for a client tool call; on resume, return the client's result."""
    answer = interrupt({"type": CLIENT_CALL, "id": call["id"], "name": call["name"], "arguments": call["arguments"]})
    if not isinstance(answer, dict) or "content" not in answer:
        return CallResult(as_text(answer))
    content = answer["content"]
    return CallResult(
        to_json_safe(content) if isinstance(content, list) else as_text(content),
        "error" if answer.get("status") == "error" else "success",
    )


def fault_further_client_calls(calls: Sequence[Call], names: Collection[str]) -> list[Call]:
    """Return a plan's calls, in order, with a fault on each call of a client's tool after the first."""
    client_ids = [call["id"] for call in calls if call["name"] in names and "fault" not in call]
    further = {*client_ids[1:]}
    return [{**call, "fault": _NOT_FIRST, "skipped": True} if call["id"] in further else call for call in calls]


def bare_schema(name: str) -> dict[str, Any]:
    """Return an OpenAI function schema without parameters, for a tool known only by name."""
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
