"""The example's team: three real processes over A2A."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from examples.research_team.offline_model import make_analyst, make_coordinator, make_librarian
from examples.research_team.planets import calculate, look_up
from examples.research_team.team import agent, ask, team
from graph_agent import GraphDelegate, LoopConfig, create_graph_agent
from tests.support.agents import asks, says
from tests.support.cli import run_cli
from tests.support.warm_process import warm_python

ROOT = Path(__file__).parents[2]


# One team serves the tests that change nothing of it, also when they are spread over workers.
pytestmark = pytest.mark.xdist_group("research_team")


@pytest.fixture(scope="module", autouse=True)
def _offline() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("OPENAI_API_KEY", "DEBUG_MOCK_RESPONSES"):
            patch.delenv(name, raising=False)
        patch.setattr(sys, "executable", warm_python())
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def team_url(_offline: None) -> AsyncIterator[str]:
    """The address of the team's coordinator."""
    async with team() as url:
        yield url


async def answers(url: str, *questions: str) -> list[list[str]]:
    """The team's output for each question, line by line; the answer is the last line."""
    async with asyncio.timeout(120):
        return [[line async for line in ask(url, question)] for question in questions]


async def test_the_team_shares_the_work(team_url: str) -> None:
    heavier, both = await answers(
        team_url, "How many times heavier is Jupiter than Saturn?", "How long is a day on Mars, and what is 24.7 - 24?"
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
    async with team(
        coordinator={"DEBUG_MOCK_RESPONSES": json.dumps(coordinator)},
        librarian={"DEBUG_MOCK_RESPONSES": json.dumps(["It depends."])},
    ) as url:
        (lines,) = await answers(url, "Is Pluto a planet?")

    assert lines == ["  delegate_to_librarian: started", "  delegate_to_librarian: success", "Ask again later."]


async def test_a_specialist_that_dies_is_a_result_for_the_coordinator() -> None:
    nowhere: dict[str, str] = dict.fromkeys(("ANALYST_URL", "LIBRARIAN_URL"), "http://127.0.0.1:9")
    async with agent("coordinator", nowhere) as url:
        (lines,) = await answers(url, "What is 24.7 - 24?")

    assert lines == ["  delegate_to_analyst: started", "  delegate_to_analyst: error", "Nobody could tell."]


async def test_an_occupied_port_is_reported_by_the_team(team_url: str) -> None:
    port = team_url.rpartition(":")[2]

    config = "examples/research_team/analyst.yaml"
    done = await asyncio.to_thread(run_cli, ROOT, "a2a", "--config", config, "--port", port)

    assert (done.returncode, done.stderr.strip()) == (
        2,
        f"error: --host 127.0.0.1 --port {port}: Address already in use; take another port.",
    )


async def test_an_early_disconnect_leaves_no_task_behind(team_url: str) -> None:
    async with asyncio.timeout(180), aclosing(ask(team_url, "How many moons has Mars?")) as lines:
        async for _ in lines:
            break
    (again,) = await answers(team_url, "How many moons has Mars?")

    assert again[-1] == "Mars: moons 2."
