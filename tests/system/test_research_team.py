"""The example's team: three real processes over A2A."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import pytest

from examples.research_team.offline_model import make_analyst, make_coordinator, make_librarian
from examples.research_team.planets import calculate, look_up
from examples.research_team.team import ask, team
from graph_agent import GraphDelegate, LoopConfig, create_graph_agent
from tests.support.agents import asks, says


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "DEBUG_MOCK_RESPONSES"):
        monkeypatch.delenv(name, raising=False)


async def answers(*questions: str, **environments: Mapping[str, str]) -> list[list[str]]:
    """The team's output for each question, line by line; the answer is the last line."""
    async with asyncio.timeout(120), team(**environments) as url:
        return [[line async for line in ask(url, question)] for question in questions]


async def test_the_team_shares_the_work() -> None:
    heavier, both = await answers(
        "How many times heavier is Jupiter than Saturn?", "How long is a day on Mars, and what is 24.7 - 24?"
    )

    assert (
        heavier[-1],
        [line for line in heavier if line.startswith("  delegate") and "started" in line],
        both[-1],
    ) == (
        "Jupiter: mass 1898 10^24 kg. Saturn: mass 568 10^24 kg. 1898 / 568 = 3.342.",
        ["  delegate_to_librarian: started", "  delegate_to_analyst: started"],
        "Mars: day 24.7 hours. 24.7 - 24 = 0.7.",
    )


@pytest.mark.parametrize("finalize", ["compose", "direct"])
@pytest.mark.parametrize("planner", ["native", "text", "wave", "dag"])
async def test_the_team_answers_in_every_mode(planner: str, finalize: Any) -> None:
    mode: Any = "wave" if planner == "dag" else planner
    config = LoopConfig(tool_calling=mode, planner="dag" if planner == "dag" else "wave", finalize=finalize)
    librarian = create_graph_agent(make_librarian(), tools=[look_up], config=config)
    analyst = create_graph_agent(make_analyst(), tools=[calculate], config=config)
    delegates = [GraphDelegate("librarian", "Looks up.", librarian), GraphDelegate("analyst", "Calculates.", analyst)]
    team = create_graph_agent(make_coordinator(), delegates=delegates, config=config)

    answered = await team.ainvoke(says("How many times heavier is Jupiter than Saturn?"))

    # The sum needs the facts, so that one plan alone cannot hold both.
    divided = "" if planner == "dag" else " 1898 / 568 = 3.342."
    found = "Jupiter: mass 1898 10^24 kg. Saturn: mass 568 10^24 kg."
    assert answered["messages"][-1].text == found + divided


async def test_each_process_takes_a_script_of_its_own() -> None:
    coordinator = [asks(("1", "delegate_to_librarian", {"task": "Pluto?"})), "No more actions.", "Ask again later."]
    (lines,) = await answers(
        "Is Pluto a planet?",
        coordinator={"DEBUG_MOCK_RESPONSES": json.dumps(coordinator)},
        librarian={"DEBUG_MOCK_RESPONSES": json.dumps(["It depends."])},
    )

    assert lines == ["  delegate_to_librarian: started", "  delegate_to_librarian: success", "Ask again later."]


async def test_a_specialist_that_dies_is_a_result_for_the_coordinator() -> None:
    nowhere = {"ANALYST_URL": "http://127.0.0.1:9"}
    (lines,) = await answers("What is 24.7 - 24?", coordinator=nowhere)

    assert lines == ["  delegate_to_analyst: started", "  delegate_to_analyst: error", "Nobody could tell."]


async def test_an_occupied_port_is_reported_by_the_team() -> None:
    async with team() as url:
        port = url.rpartition(":")[2]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "graph_agent.cli.app",
            "a2a",
            "--config",
            "examples/research_team/analyst.yaml",
            "--port",
            port,
            stderr=asyncio.subprocess.PIPE,
            env=dict(os.environ),
        )
        _, output = await process.communicate()

    assert (process.returncode, output.decode().strip()) == (
        2,
        f"error: --host 127.0.0.1 --port {port}: Address already in use; take another port.",
    )


async def test_an_early_disconnect_leaves_no_task_behind() -> None:
    async with asyncio.timeout(180), team() as url:
        async with aclosing(ask(url, "How many moons has Mars?")) as lines:
            async for _ in lines:
                break
        again = [line async for line in ask(url, "How many moons has Mars?")]

    assert again[-1] == "Mars: moons 2."
