"""Interrupts the graph for each client tool, which the caller of a run executes; its result resumes the graph.

A client tool is offered to the model by the caller of a run, as a schema without code in the agent.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from langgraph.types import interrupt

from graph_agent.base._internal.text import as_text, to_json_safe
from graph_agent.base.history.call_events import CallResult
from graph_agent.base.types import CLIENT_CALL, Call

_NOT_FIRST = (
    "It did not run: tools of this kind are called one at a time. Wait for the other's result, and call this one again "
    "if it is still wanted."
)
"""Result, for the model, of each client call of a plan after the first."""


def call_client_tool(call: Call) -> CallResult:
    """Interrupt the graph so that the program which started the run executes a client tool; after the resume, return
    the result.

    At the first execution this raises LangGraph's `GraphInterrupt`, whose value is the call. The value that resumes the
    run is a `ClientResult` (a dict with `content`); any other value is converted to text and counts as success. In a
    `ClientResult`, only the status `error` makes an error, and any content but a list of blocks becomes text. Raises
    `ValueError` for an answer that is nested too deeply.
    """
    answer = interrupt({"type": CLIENT_CALL, "id": call["id"], "name": call["name"], "arguments": call["arguments"]})
    if not isinstance(answer, dict) or "content" not in answer:
        return CallResult(as_text(answer))
    content = answer["content"]
    return CallResult(
        to_json_safe(content) if isinstance(content, list) else as_text(content),
        "error" if answer.get("status") == "error" else "success",
    )


def fault_further_client_calls(calls: Sequence[Call], names: Collection[str]) -> list[Call]:
    """Return a plan's calls, with a `fault` on each call of a client tool after the first, because they run one at a
    time.

    Such a call gets a `skipped` result that asks the model to call it again. Calls with a `fault` do not count.

    Args:
        calls: The plan's calls; their order is kept.
        names: Names of the client tools.
    """
    # A run has one pending interrupt of this kind, whose answer belongs to exactly one call.
    client_ids = [call["id"] for call in calls if call["name"] in names and "fault" not in call]
    further = {*client_ids[1:]}
    return [{**call, "fault": _NOT_FIRST, "skipped": True} if call["id"] in further else call for call in calls]


def bare_schema(name: str) -> dict[str, Any]:
    """Return an OpenAI function schema with no description and no parameters, for a tool known only by name."""
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
