"""Stores a session with many events, without running it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.persistence import open_saver

_STEPS, _CALLS = 10, 12


async def store_long_session(url: str, session_id: str, events: int) -> None:
    """Store a session with at least this number of events: inputs of ten steps with twelve calls each."""
    stored: list[dict[str, Any]] = []
    while len(stored) < events:
        stored += _input_events(len(stored))
    await _store(url, session_id, stored)


async def store_turns(url: str, session_id: str, turns: int) -> None:
    """Store a session with this number of inputs that the model answered without calls."""
    await _store(url, session_id, [event for n in range(turns) for event in _input_events(n, steps=0)])


async def _store(url: str, session_id: str, stored: list[dict[str, Any]]) -> None:
    async with open_saver(url) as saver:
        graph = create_graph_agent(ScriptedChatModel([]), checkpointer=saver)
        thread: Any = {"configurable": {"thread_id": session_id}}
        values = {"events": stored, "messages": [("user", "Count."), ("ai", "I counted.")], "status": "RUNNING"}
        await graph.aupdate_state(thread, values, as_node="finalize")
        await graph.aupdate_state(thread, {"status": "COMPLETED"}, as_node="finalize")


def _input_events(begin: int, steps: int = _STEPS) -> list[dict[str, Any]]:
    now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=begin)
    events: list[dict[str, Any]] = []

    def add(kind: str, step: int, **fields: Any) -> None:
        ts = (now + timedelta(milliseconds=10 * len(events))).isoformat(timespec="microseconds")
        events.append({"type": kind, "ts": ts, "step": step, **fields})

    add("user_message", 0, content=f"Count from {begin}.")
    add("status", 0, **_status("CREATED", "RUNNING"))
    for step in range(1, steps + 1):
        calls = [{"id": f"c{begin}.{step}.{n}", "name": "count"} for n in range(_CALLS)]
        add("plan", step, status="continue", action="count", reasoning="I count on.", calls=calls)
        for call in calls:
            add("tool_call", step, **call, arguments={"from": begin})
        for n, call in enumerate(calls):
            add("tool_result", step, **call, status="success", content=f"{n} " * 40, truncated=False)
    add("agent_response", steps, content=f"I **counted** from {begin}.")
    add("status", steps, **_status("RUNNING", "COMPLETED"))
    return events


def _status(before: str, after: str) -> dict[str, Any]:
    return {"from": before, "to": after}
