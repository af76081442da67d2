"""Calls cut off by a timeout or a dead server: whether the effect is unknown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.mcp import McpCallError
from tests.support.agents import asks, marked

RETRY = {"max_attempts": 2, "initial_interval": 0}


@tool
async def hang() -> str:
    """Never finish."""
    await asyncio.Event().wait()
    return "unreachable"


def lost(may_have_run: bool) -> BaseTool:
    @tool
    async def call_server() -> str:
        """Ask a server that dies."""
        raise McpCallError("The server died.", may_have_run=may_have_run)

    return call_server


def lost_then_refused() -> BaseTool:
    errors: list[Exception] = [McpCallError("The server died.", may_have_run=True), ValueError("no")]

    @tool
    async def call_server() -> str:
        """Ask a server that dies, and refuses when it is back."""
        raise errors.pop(0)

    return call_server


@pytest.mark.parametrize(
    ("given", "marks", "status", "calls"),
    [
        (hang, {"timeout_s": 0.01}, "error", "failed"),
        (hang, {"timeout_s": 0.01, "effect": "read"}, "error", "failed"),
        (lost(may_have_run=True), {}, "unknown", "unknown"),
        (lost(may_have_run=True), {"effect": "read"}, "error", "failed"),
        (lost(may_have_run=False), {}, "error", "failed"),
        (lost_then_refused(), {"idempotent": True, "retry": RETRY}, "unknown", "unknown"),
        (lost_then_refused(), {"retry": RETRY}, "unknown", "unknown"),
    ],
    ids=["time", "time, reads", "lost", "lost, reads", "never sent", "lost, then refused", "not tried again"],
)
async def test_the_status_of_a_call_that_was_cut_off(
    given: BaseTool, marks: dict[str, Any], status: str, calls: str
) -> None:
    model = ScriptedChatModel([asks(("1", given.name, {})), "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=[marked(given, **marks)], checkpointer=InMemorySaver())
    talk = Session(graph, "s1")

    await talk.run("go")

    recorded = next(event for event in await talk.events() if event["type"] == "tool_result")
    message = (await talk.driver.state()).values["messages"][2]
    assert (recorded["status"], message.status, [record.state for record in await talk.calls()]) == (
        status,
        "error",
        [calls],
    )
