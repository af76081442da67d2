"""Full copies of the delta channels: no update is lost, whenever the checkpoints are stored."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, create_graph_agent
from tests.support.agents import says, thread

_TURNS = 20


def build_agent() -> Any:
    agent = create_graph_agent(ScriptedChatModel(["ok"] * _TURNS), checkpointer=InMemorySaver())
    channels: Any = agent.channels
    for name in ("messages", "events"):
        channels[name].snapshot_frequency = 3
    return agent


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_all_messages_are_kept_with_every_durability(durability: Literal["sync", "async", "exit"]) -> None:
    agent = build_agent()

    counts: list[int] = []
    for number in range(_TURNS):
        await agent.ainvoke(says(f"message {number}"), thread("s1"), durability=durability)
        counts.append(len((await agent.aget_state(thread("s1"))).values["messages"]))

    assert counts == list(range(2, 2 * _TURNS + 2, 2))


def test_all_messages_are_kept_by_blocking_runs_that_store_at_exit() -> None:
    agent = build_agent()

    counts: list[int] = []
    for number in range(_TURNS):
        agent.invoke(says(f"message {number}"), thread("s1"), durability="exit")
        counts.append(len(agent.get_state(thread("s1")).values["messages"]))

    assert counts == list(range(2, 2 * _TURNS + 2, 2))
