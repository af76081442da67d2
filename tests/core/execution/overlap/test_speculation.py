"""The budget of what begins before a plan asks for it, and the account of it in events, metrics and reports."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from graph_agent import LoopConfig, ScriptedChatModel, SpeculationBudget
from graph_agent.errors import ConfigError
from graph_agent.interfaces.cli.trace import draw
from graph_agent.interfaces.server.metrics import Metrics
from graph_agent.session.early_work import EarlyWork, early_work_of
from graph_agent.session.trace import spans_of
from tests.support.cli import run_cli
from tests.support.early_calls import SlowModel, agent_of, calls, found, read
from tests.support.terminal import agent_folder


def started_of(events: Any) -> int:
    return early_work_of(events).started


@pytest.mark.parametrize(("limit", "started"), [(None, 3), (2, 2), (0, 0)])
async def test_no_more_calls_begin_early_than_the_budget_admits(limit: int | None, started: int) -> None:
    model = SlowModel(responses=[calls("look", "look", "look"), "Done."], streaming=True)
    model.may_end.set()
    session = agent_of(model, [read("look", found)], speculation_budget=SpeculationBudget(calls=limit)).session("s1")
    result = await session.run("Look it up.")

    assert (started_of(await session.events()), len(result.results)) == (started, 3)


async def test_calls_that_a_plan_uses_give_their_room_back() -> None:
    script = [calls("look", text="a"), calls("look", text="b"), calls("look", text="c"), "Done."]
    model = ScriptedChatModel(script, streaming=True)
    session = agent_of(model, [read("look", found)], speculation_budget=SpeculationBudget(calls=1)).session("s1")
    await session.run("Look it up.")

    early = early_work_of(await session.events())
    assert (early.started, early.used) == (3, 3)


async def test_a_call_that_has_used_up_the_seconds_is_cancelled_and_runs_again_with_its_plan() -> None:
    ran: list[str] = []
    model = SlowModel(responses=[calls("look"), "Done."], streaming=True)

    async def work(text: str) -> str:
        ran.append("began")
        if len(ran) == 1:
            try:
                await asyncio.Event().wait()
            finally:
                ran.append("cancelled")
                model.may_end.set()
        return f"found {text}"

    session = agent_of(model, [read("look", work)], speculation_budget=SpeculationBudget(seconds=0.05)).session("s1")
    result = await session.run("Look it up.")
    [counts] = [event["early"] for event in await session.events() if "early" in event]

    assert (ran, [*result.results.values()]) == (["began", "cancelled", "began"], ["found a"])
    assert {**counts["streamed"], "dropped_s": 0.05 <= counts["streamed"]["dropped_s"] < 30} == {
        "started": 1,
        "dropped": 1,
        "dropped_s": True,
    }


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"calls": -1}, "LoopConfig: speculation_budget.calls=-1: Input should be greater than or equal to 0."),
        ({"second": 1}, "LoopConfig: unknown field 'speculation_budget.second'; known: calls, cost, seconds."),
        ({"cost": 1}, "LoopConfig: speculation_budget.cost needs prices, e.g. prices={'gpt-4o-mini': {"),
    ],
)
def test_a_budget_that_does_not_fit_is_an_error_with_the_fix(given: Any, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        LoopConfig(speculation_budget=given)

    assert str(error.value).startswith(text)


def result(id_: str, **times: float) -> dict[str, Any]:
    return {"type": "tool_result", "id": id_, "name": "look", "status": "success", "ts": "2026-01-01", **times}


EVENTS: list[dict[str, Any]] = [
    {"type": "user_message"},
    {"type": "plan", "calls": [1], "early": {"streamed": {"started": 3, "dropped": 1, "dropped_s": 0.5}}},
    result("a", queued_s=0.0, duration_s=1.0, early_s=2.0),
    result("b", queued_s=0.5, duration_s=1.0),
    {
        "type": "agent_response",
        "early": {"streamed": {"used": 2}, "request": {"started": 1, "dropped": 1, "cost": 0.25}},
    },
]


def test_the_time_saved_is_that_of_the_slowest_call_of_each_plan() -> None:
    assert early_work_of(EVENTS) == EarlyWork(started=4, used=2, saved_s=1.5, wasted_s=0.5, wasted_cost=0.25)


def test_a_trace_draws_where_a_call_ran_before_its_plan_was_complete() -> None:
    def at(second: int, type_: str, **fields: Any) -> dict[str, Any]:
        return {"type": type_, "ts": f"2026-01-01T00:00:{second:02}+00:00", "step": 1, **fields}

    model = {"purpose": "plan", "model": "m", "started": "2026-01-01T00:00:00+00:00", "duration_s": 8.0}
    plan = {"calls": [], "action": "", "reasoning": "", "status": "continue"}
    call = {"id": "a", "name": "look"}
    times = {"queued_s": 0.0, "duration_s": 0.0, "early_s": 2.0, "lead_s": 6.0}
    events = [
        at(0, "user_message", content="go"),
        at(8, "plan", **plan, model_calls=[model]),
        at(8, "tool_call", **call, arguments={}),
        at(8, "tool_result", **call, **times, status="success", content=""),
    ]
    [root] = spans_of(events)
    bars = [line[46:] for line in draw(root, 1)[2:4]]

    assert bars == ["█" * 34, " " * 8 + "▒" * 9]


def test_metrics_count_what_began_early_by_source_and_outcome() -> None:
    metrics = Metrics()
    for event in EVENTS:
        metrics.count(event, {})

    lines = metrics.text().decode().splitlines()
    assert {line for line in lines if ("specul" in line or "early" in line) and not line.startswith("#")} >= {
        'graph_agent_speculation_total{outcome="used",source="streamed"} 2.0',
        'graph_agent_speculation_total{outcome="dropped",source="streamed"} 1.0',
        'graph_agent_speculation_total{outcome="dropped",source="request"} 1.0',
        'graph_agent_speculation_dropped_seconds_total{source="streamed"} 0.5',
        'graph_agent_speculation_dropped_cost_total{source="request"} 0.25',
        "graph_agent_early_seconds_total 2.0",
    }


TOOLS = """
from graph_agent.marks import marked


def look(text: str) -> str:
    \"\"\"Look up.\"\"\"
    return text


look = marked(look, effect="read")
"""


def test_a_report_and_a_trace_show_how_many_early_calls_were_used(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, TOOLS, "look")
    with (folder / "agent.yaml").open("a") as file:
        file.write("config: {dispatch: streamed, speculation_budget: {calls: 1}}\n")
    run_cli(folder, "run", "--session", "s", "Look.", script=[calls("look", "look"), "Done."])

    table = run_cli(folder, "report").stdout.split("\n\n")[1].splitlines()
    [arm] = map(json.loads, run_cli(folder, "report", "--json").stdout.splitlines())
    trace = run_cli(folder, "trace", "s").stdout

    assert [line.split()[:4] for line in table] == [
        ["planner", "early", "used", "saved"],
        ["(none)", "1", "1", "(100%)"],
    ]
    assert (arm["early"]["started"], arm["early"]["hit_rate"]) == (1, 1.0)
    assert "  1 of 1 early calls used: " in trace
