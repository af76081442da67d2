"""Spans: what a session did, projected from its events."""

from __future__ import annotations

import asyncio
import signal
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, SessionMemory, create_graph_agent
from graph_agent.base.settings.config import Price
from graph_agent.interfaces.cli.trace import draw
from graph_agent.persistence import open_saver
from graph_agent.session.time_axis import TimeAxis
from graph_agent.session.trace import Span, spans_of
from tests.support import gaps
from tests.support.agents import ECHO_SCRIPT, asks, echo
from tests.support.approvals import Desk
from tests.support.cli import run_cli
from tests.support.sessions import new_session
from tests.support.warm_process import warm_python

NOON = datetime.fromisoformat("2026-11-23T12:00:00+00:00")


def tree(spans: list[Span]) -> list[tuple[int, str, str, str]]:
    """Depth, kind, name and status of each span, without the gaps of a loaded machine."""
    found = [(depth, each.kind, each.name, each.status) for root in spans for depth, each in root.walk()]
    return [each for each in found if each[-1] != "idle"]


def event(type_: str, at_s: float, **fields: Any) -> dict[str, Any]:
    return {"type": type_, "ts": (NOON + timedelta(seconds=at_s)).isoformat(), "step": 1, **fields}


async def test_each_input_is_a_tree_of_plans_model_calls_and_calls() -> None:
    session = new_session(ScriptedChatModel([*ECHO_SCRIPT, "Hello."]), echo)
    await session.run("go")
    await session.run("hi")

    assert tree(await session.trace()) == [
        (0, "input", "go", "COMPLETED"),
        (1, "plan", "call echo", ""),
        (2, "model", "scripted", ""),
        (1, "tool", "echo", "success"),
        (1, "plan", "answer", ""),
        (2, "model", "scripted", ""),
        (1, "answer", "agent_response", ""),
        (2, "model", "scripted", ""),
        (0, "input", "hi", "COMPLETED"),
        (1, "plan", "answer", ""),
        (2, "model", "scripted", ""),
    ]


async def test_the_work_of_a_delegate_is_within_its_delegation_and_its_cost_in_the_sum() -> None:
    prices = LoopConfig(prices={"scripted": Price(input=1, output=1)})
    inner = create_graph_agent(ScriptedChatModel([asks(("e", "echo", {"text": "x"})), "Found."]), tools=[echo])
    session = new_session(
        ScriptedChatModel([asks(("d", "delegate_to_helper", {"task": "look"})), "Done."]),
        delegates=[GraphDelegate("helper", "Helps.", inner)],
        config=prices,
    )
    await session.run("go")

    [root] = await session.trace()

    delegation = root.children[1]
    assert tree([delegation]) == [
        (0, "delegation", "helper", "success"),
        (1, "plan", "call echo", ""),
        (2, "model", "scripted", ""),
        (1, "tool", "echo", "success"),
        (1, "plan", "answer", ""),
        (2, "model", "scripted", ""),
    ]
    assert root.cost == sum(child.cost or 0 for child in root.children)
    assert delegation.cost is not None
    assert delegation.cost > 0


async def test_a_wait_for_a_person_is_a_span_that_ends_with_the_decision() -> None:
    desk = Desk(asks(("1", "write", {"path": "a"})), "Done.")
    await desk.session.run("go")
    [open_] = await desk.session.trace()

    await desk.session.resume({"decisions": [{"type": "approve"}]})

    [ended] = await desk.session.trace()
    waits = [[each for each in root.children if each.kind == "wait"] for root in (open_, ended)]
    assert [[(each.name, each.status, each.duration_s is None) for each in found] for found in waits] == [
        [("write", "waiting", True)],
        [("write", "", False)],
    ]


async def test_an_input_ends_when_a_newer_one_supersedes_it() -> None:
    desk = Desk(asks(("1", "write", {"path": "a"})), "Done.")
    await desk.session.run("go")
    await desk.session.run("never mind")

    superseded, newest = await desk.session.trace()

    [wait] = [each for each in superseded.children if each.kind == "wait"]
    assert [(each.status, each.duration_s is None) for each in (superseded, wait, newest)] == [
        ("SUPERSEDED", False),
        ("", False),
        ("COMPLETED", False),
    ]
    assert (superseded.end, wait.end) == (newest.start, newest.start)


async def test_the_wait_of_an_aborted_input_ends_with_it() -> None:
    desk = Desk(asks(("1", "write", {"path": "a"})))
    await desk.session.run("go")
    await desk.session.abort()

    [root] = await desk.session.trace()

    [wait] = [each for each in root.children if each.kind == "wait"]
    assert (root.status, wait.status, wait.end) == ("ABORTED", "", root.end)


def quick() -> str:
    """Never run: its result is stored."""
    raise AssertionError


def endless() -> str:
    """Never run again."""
    raise AssertionError


async def test_a_killed_run_is_interrupted_and_the_time_until_its_resume_is_a_wait(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    process = await asyncio.create_subprocess_exec(warm_python(), "-m", "tests.support.killed_run", str(path))
    assert await process.wait() == -signal.SIGKILL
    drawn = run_cli(tmp_path, "trace", "s1", "--db", f"sqlite:///{path}").stdout.splitlines()
    assert (drawn[1].split(",")[0], drawn[3].split()) == ("  INTERRUPTED", ["├", "?", "endless", "▏"])
    async with open_saver(f"sqlite:///{path}") as saver:
        session = create_graph_agent(ScriptedChatModel(["Done."]), [quick, endless], checkpointer=saver).session("s1")
        memory = SessionMemory(session.graph)
        found = await memory.list_sessions(status="interrupted")
        [cut_off] = await session.trace()
        result = await session.resume()
        left = await memory.list_sessions(status="interrupted")
        [resumed] = await session.trace()

    wait = next(each for each in resumed.children if each.kind == "wait")
    lost = next(each for each in resumed.children if each.name == "endless")
    assert (found, left, tree([cut_off]), tree([resumed])) == (
        ["s1"],
        [],
        [
            (0, "input", "go", "INTERRUPTED"),
            (1, "plan", "call quick, endless", ""),
            (2, "model", "scripted", ""),
            (1, "tool", "endless", "interrupted"),
            (1, "tool", "quick", "success"),
        ],
        [
            (0, "input", "go", "COMPLETED"),
            (1, "plan", "call quick, endless", ""),
            (2, "model", "scripted", ""),
            (1, "tool", "endless", "unknown"),
            (1, "tool", "quick", "success"),
            (1, "wait", "", "interrupted"),
            (1, "plan", "answer", ""),
            (2, "model", "scripted", ""),
        ],
    )
    drawn = run_cli(tmp_path, "trace", "s1", "--db", f"sqlite:///{path}").stdout.splitlines()
    assert [line.split()[1] for line in drawn if "┄" in line] == ["interrupted"]
    assert (lost.duration_s, wait.duration_s is not None) == (None, True)
    assert {each.name: each.duration_s is not None for each in result.calls} == {"quick": True, "endless": False}


def test_a_session_without_times_has_the_durations_of_its_calls() -> None:
    stored = [
        event("user_message", 0, content="go"),
        event("plan", 1, status="continue", action="call echo", reasoning="", calls=[{"id": "a", "name": "echo"}]),
        event("tool_call", 1, id="a", name="echo", arguments={}),
        event("tool_result", 3, id="a", name="echo", status="success", content="x", truncated=False),
        event("agent_response", 4, content="Done."),
        event("status", 4, **{"from": "RUNNING", "to": "COMPLETED"}),
    ]

    [root] = spans_of(stored)

    assert [(each.kind, each.duration_s) for _, each in root.walk()] == [("input", 4), ("plan", None), ("tool", 2)]


def test_a_wall_clock_that_is_set_back_leads_to_no_negative_duration() -> None:
    call = {"id": "1", "name": "echo"}
    events = [
        event("user_message", 100, content="go"),
        event("approval_request", 90, calls=[{**call, "arguments": {}}]),
        event("approval_decision", 80, **call, decision="approve"),
        event("tool_call", 70, **call, arguments={}),
        event("tool_result", 60, **call, status="success", content="x"),
        event("status", 50, **{"from": "RUNNING", "to": "COMPLETED"}),
    ]

    assert [span.duration_s for root in spans_of(events) for _, span in root.walk()] == [0.0, 0.0, 0.0]


def test_a_long_wait_takes_no_more_of_the_axis_than_a_quarter_of_the_work() -> None:
    wait = NOON + timedelta(seconds=4), NOON + timedelta(seconds=3604)

    axis = TimeAxis(NOON, NOON + timedelta(seconds=3608), [wait])

    seconds = (0, 4, 3604, 3608)
    assert [axis.at(NOON + timedelta(seconds=each)) for each in seconds] == [0, 0.4, 0.6, 1]


@pytest.mark.parametrize("case", gaps.CASES)
def test_a_gap_is_named_by_what_is_recorded_of_it(case: str) -> None:
    events, expected = gaps.CASES[case]

    [root] = spans_of(events)

    lines = [line.split()[1] for line in draw(root, 1) if "┄" in line or line.split()[1:2] == ["person:"]]
    assert [line.removesuffix(":") for line in lines] == expected
