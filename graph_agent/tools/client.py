"""Tools that the caller of a run brings along and runs itself: a call of one is an interrupt, its result the answer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from langgraph.types import interrupt
from typing_extensions import TypedDict

from graph_agent._internal.text import as_text, plain
from graph_agent.tools.output import Output
from graph_agent.types import Call

CLIENT_CALL = "client_tool_call"
"""The `type` of the interrupt's value, which has the call's `id`, `name` and `arguments` beside it."""


_ONE = (
    "It did not run: tools of this kind are called one at a time. Wait for the other's result, and call this one again "
    "if it is still wanted."
)


class ClientResult(TypedDict):
    """What resumes such an interrupt."""

    content: str | list[Any]
    """Text, or LangChain content blocks."""
    status: str
    """`success`, or `error` for a tool that failed."""


def asked_of_client(call: Call) -> Output:
    """Stop for a call that its caller runs; when the run is resumed, what came of it.

    Raises:
        GraphInterrupt: Until the result is there.
    """
    answer = interrupt({"type": CLIENT_CALL, "id": call["id"], "name": call["name"], "arguments": call["arguments"]})
    if not isinstance(answer, dict) or "content" not in answer:
        return Output(as_text(answer))
    content = answer["content"]
    return Output(
        plain(content) if isinstance(content, list) else as_text(content),
        "error" if answer.get("status") == "error" else "success",
    )


def one_at_a_time(calls: Sequence[Call], names: Collection[str]) -> list[Call]:
    """The calls of a plan, of which only the first of the caller's own is to be run; the others say what is wrong.

    Args:
        calls: The calls, in the model's order.
        names: The caller's tools.
    """
    asked = [call["id"] for call in calls if call["name"] in names and "fault" not in call]
    return [{**call, "fault": _ONE} if call["id"] in asked[1:] else call for call in calls]


def bare_schema(name: str) -> dict[str, Any]:
    """The schema of a tool of which nothing is known but its name, as an OpenAI function."""
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
