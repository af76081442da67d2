"""Sessions whose process was killed in the first model call of an input: every view shows the input as unfinished."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver
from graph_agent.runs.registry import running_check
from graph_agent.session.history import EventReader, summarize_sessions
from graph_agent.session.importing import export_session
from graph_agent.testing.recording import read_recording
from tests.support.agents import echo, kinds
from tests.support.killed_first_call import SESSION
from tests.support.postgres_server import on_postgres

BEGUN = ["user_message", "status"]


async def killed(url: str, number: int, *, plans: bool = True) -> None:
    """Kill a process in the first model call of an input."""
    arguments = ["-m", "tests.support.killed_first_call", url, str(number), str(int(plans))]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments)
    assert await process.wait() == -signal.SIGKILL


def agent(saver: Any, *replies: str, plans: bool = True) -> Any:
    return create_graph_agent(ScriptedChatModel(list(replies)), tools=[echo] if plans else [], checkpointer=saver)


def without_times(events: list[Any]) -> list[Any]:
    return [{name: value for name, value in event.items() if name not in ("ts", "queued_s")} for event in events]


@pytest.mark.parametrize("number", [1, 2], ids=["first input", "second input"])
@pytest.mark.parametrize("plans", [True, False], ids=["tools", "no tools"])
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=on_postgres)])
async def test_a_session_killed_in_a_first_model_call_is_interrupted_in_every_view(
    kind: str, plans: bool, number: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else f"sqlite:///{tmp_path / 'a.db'}"
    await killed(url, number, plans=plans)
    asked = f"question {number}"

    async with open_saver(url) as saver:
        session = Session(agent(saver, "Finished.", plans=plans), SESSION)
        status, events, result = await session.status(), await session.events(), await session.driver.result()
        [summary] = await summarize_sessions(saver, running_check(saver))
        found = await EventReader(None, saver, SESSION).read_tail(pending=True)
        tail = await session.events(last=2)
        span, recorded = (await session.trace())[-1], await read_recording(saver, SESSION)
        calls = await session.calls()
        lines = [line async for line in export_session(url, SESSION)]
        finished = await session.resume()
        after = await session.events()

    exported = [line["event"] for line in lines if line["type"] == "event"]
    assert (
        status,
        kinds(events)[-2:],
        events[-2]["content"],
        (result.status, result.stop_reason, result.answer, len(result.events)),
        (summary.status, summary.activity),
        found is not None and without_times(found[1]),
        without_times(exported),
        tail,
        (span.name, span.status, recorded.inputs[-1].content, recorded.inputs[-1].status),
        calls,
    ) == (
        "RUNNING",
        BEGUN,
        asked,
        ("RUNNING", None, "", len(events)),
        ("RUNNING", "interrupted"),
        [
            {name: value for name, value in event.items() if name not in ("seq", "session_id")}
            for event in without_times(events)
        ],
        without_times(events),
        events[-2:],
        (asked, "RUNNING", asked, "RUNNING"),
        [],
    )
    assert (finished.status, finished.answer, without_times(after)[: len(events)]) == (
        "COMPLETED",
        "Finished.",
        without_times(events),
    )
