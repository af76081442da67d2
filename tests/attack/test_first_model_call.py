"""Kills in the middle of model calls: every view shows the input that was begun, and a resumed session ends it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from langchain_core.messages import HumanMessage

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver
from graph_agent.session.activity import running_check
from graph_agent.session.history import summarize_sessions
from tests.attack import report
from tests.support.agents import echo
from tests.support.postgres_server import on_postgres
from tests.support.slow_asker import SESSION
from tests.support.warm_process import warm_python

pytestmark = pytest.mark.attack

_KILLS = 8
_LONGEST_S = 0.3


async def _killed(url: str, first: int, choice: random.Random) -> int:
    """Start a process that sends inputs, and kill it at any moment after its first; return the last number it ended."""
    arguments = ["-m", "tests.support.slow_asker", url, str(first)]
    process = await asyncio.create_subprocess_exec(warm_python(), *arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    await asyncio.sleep(choice.uniform(0, _LONGEST_S))
    process.kill()
    await process.wait()
    ended = [first, *map(int, (await process.stdout.read()).split())]
    return ended[-1]


async def _faults(url: str, ended: int) -> tuple[list[str], int, bool]:
    """Return what the views of the session violate, its number of inputs, and whether one had not ended."""
    async with open_saver(url) as saver:
        graph = create_graph_agent(ScriptedChatModel(["Resumed."]), tools=[echo], checkpointer=saver)
        session = Session(graph, SESSION)
        state = await session.driver.state()
        asked = [message.text for message in state.values["messages"] if isinstance(message, HumanMessage)]
        is_open, events = bool(state.tasks), await session.events()
        shown = [event["content"] for event in events if event["type"] == "user_message"]
        [summary] = await summarize_sessions(saver, running_check(saver))
        views = (await session.status(), (await session.driver.result()).status, summary.status, summary.activity)
        expected = ("RUNNING",) * 3 + ("interrupted",) if is_open else ("COMPLETED",) * 3 + ("idle",)
        found = (
            [] if views == expected else [f"the views are {views}, and its input is {'open' if is_open else 'ended'}"]
        )
        # The input may be stored without being taken in.
        found += (
            [] if shown[: len(asked)] == asked and len(shown) <= len(asked) + 1 else [f"{shown} of {asked} are shown"]
        )
        found += [] if len(shown) >= ended else [f"{ended} inputs had ended, and {len(shown)} are shown"]
        if is_open and (status := (await session.resume()).status) != "COMPLETED":
            found.append(f"the resumed input ended with {status}")
        return found, len(shown), is_open


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=on_postgres)])
async def test_a_kill_in_a_model_call_shows_and_is_resumed(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else f"sqlite:///{tmp_path / 'a.db'}"
    choice = random.Random(f"{report.SEED} first model call {kind}")
    found: list[str] = []
    inputs = opened = 0
    for _ in range(_KILLS * report.SCALE):
        ended = await _killed(url, inputs + 1, choice)
        faults, inputs, is_open = await _faults(url, ended)
        found += faults
        opened += is_open
    report.note_faults("kills in model calls", "kills", _KILLS * report.SCALE, found)

    assert (found, opened > 0) == ([], True)
