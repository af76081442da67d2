"""Requests and histories of agents in which nothing begins before it is asked for."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, SpeculationBudget, create_graph_agent
from graph_agent.marks import marked

NATIVE = ['{"tool_calls": [{"id": "a", "name": "look", "arguments": {"text": "a"}}]}', "Done."]
PLANS = [
    '{"status": "continue", "tools": [{"id": "a", "tool": "look", "args": {"text": "a"}}]}',
    '{"status": "done", "tools": [], "answer": "Done."}',
]


async def look(text: str) -> str:
    """Look up."""
    return f"found {text}"


async def requests_and_events(mode: str, config: dict[str, Any]) -> tuple[Any, Any]:
    model = ScriptedChatModel(NATIVE if mode == "native" else PLANS)
    settings = LoopConfig(**{"tool_calling": mode, **config})
    tools = [marked(look, effect="read")]
    session = create_graph_agent(model, tools, config=settings, checkpointer=InMemorySaver()).session("s1")
    await session.run("Look it up.")
    requests = [
        ([(each.type, each.content) for each in sent.messages], sent.tools, sent.tool_choice, sent.kwargs)
        for sent in model.requests
    ]
    times = {"ts", "model_calls"}
    events = [
        {key: value for key, value in event.items() if key not in times and not key.endswith("_s")}
        for event in await session.events()
    ]
    return requests, events


@pytest.mark.parametrize("mode", ["native", "wave"])
async def test_requests_and_events_are_those_of_an_agent_without_speculation(mode: str) -> None:
    off = await requests_and_events(mode, {})
    configs: list[dict[str, Any]] = [
        {"dispatch": "whole", "candidates": 1, "choose": "agreed", "predict": False},
        {"speculation_budget": SpeculationBudget(calls=3)},
        # A wave of one call has no prediction, and an empty table proposes nothing.
        {"predict": "table"},
        {"predict": True},
    ]
    requests, events = off

    assert [await requests_and_events(mode, config) == off for config in configs] == [True] * 4
    assert '"wait"' not in str(requests)
    assert not any({"early", "candidates", "judge"} & event.keys() for event in events)
