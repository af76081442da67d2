"""Helpers of the wave planning tests: plans, an agent that makes them, and readers of its requests and history."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent

DONE = '{"status": "done"}'


def use(id_: str, name: str, /, *needs: str, **arguments: Any) -> dict[str, Any]:
    """One call of a plan."""
    call = {"id": id_, "tool": name, "args": arguments}
    return {**call, "needs": list(needs)} if needs else call


def plan(*calls: dict[str, Any], status: str = "continue", **fields: Any) -> str:
    """A scripted plan."""
    return json.dumps({"status": status, "tools": list(calls), **fields})


def waves(model: Any, *, settings: dict[str, Any] | None = None, **options: Any) -> Session:
    """A session of an agent that plans in waves; `model` may be a script."""
    model = ScriptedChatModel(model) if isinstance(model, list) else model
    options.setdefault("checkpointer", InMemorySaver())
    config = LoopConfig(tool_calling="wave", **(settings or {}))
    return Session(create_graph_agent(model, config=config, **options), "s1")


def plan_requests(model: ScriptedChatModel) -> list[list[BaseMessage]]:
    """The messages of each planning request; the request for the answer is recognised by its last message."""
    return [
        request.messages
        for request in model.requests
        if not request.messages[-1].text.startswith("Now provide your final response")
    ]


def results_of(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """The results in a request, one mapping of call id → result for each wave."""
    texts = [message.text for message in messages if isinstance(message, HumanMessage)]
    return [json.loads(text)["results"] for text in texts if text.startswith('{"results"')]


def answers(messages: Sequence[BaseMessage]) -> list[tuple[str, list[str]]]:
    """Each call of a history with the texts of all its answers: exactly one when none is an orphan."""
    return [
        (call["id"] or "", [m.text for m in messages if isinstance(m, ToolMessage) and m.tool_call_id == call["id"]])
        for message in messages
        if isinstance(message, AIMessage)
        for call in message.tool_calls
    ]


def of_type(events: Sequence[Any], type_: str, *fields: str) -> list[tuple[Any, ...]]:
    """Some fields of the events of one type; None for those that are missing."""
    return [tuple(event.get(field) for field in fields) for event in events if event["type"] == type_]


@tool
async def find(what: str) -> dict[str, Any]:
    """Find something."""
    return {"what": what, "hits": [{"id": 7, "name": f"{what} one"}, {"id": 8, "name": f"{what} two"}]}


@tool
async def fail(why: str = "no such thing") -> str:
    """Fail."""
    raise ValueError(why)
