"""Sessions whose process was killed in the first model call of an input: every view shows the input as unfinished."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver
from graph_agent.session.activity import running_check
from graph_agent.session.history import EventReader, summarize_sessions
from graph_agent.session.importing import export_session
from graph_agent.testing import read_recording
from tests.support.agents import echo, kinds, says, thread
from tests.support.cli import run_cli
from tests.support.event_times import without_times
from tests.support.killed_first_call import SESSION, killed
from tests.support.postgres_server import on_postgres

BEGUN = ["user_message", "status"]


def agent(saver: Any, *replies: str, plans: bool = True) -> Any:
    return create_graph_agent(ScriptedChatModel(list(replies)), tools=[echo] if plans else [], checkpointer=saver)


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
        events: list[Any] = list(await session.events())
        status, result = await session.status(), await session.driver.result()
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
        (asked, "INTERRUPTED", asked, "RUNNING"),
        [],
    )
    assert (finished.status, finished.answer, without_times(after)[: len(events)]) == (
        "COMPLETED",
        "Finished.",
        without_times(events),
    )


async def test_the_command_line_shows_the_input_that_a_kill_interrupted(tmp_path: Path) -> None:
    await killed(f"sqlite:///{tmp_path / 'a.db'}", 2)

    def run(*arguments: str) -> str:
        return run_cli(tmp_path, *arguments, "--db", "sqlite:///a.db").stdout

    [listed] = [json.loads(line) for line in run("sessions", "--json").splitlines()]
    shown = [json.loads(line) for line in run("events", SESSION, "--json").splitlines()]
    traced = run("trace", SESSION)

    assert (
        (listed["status"], listed["activity"]),
        kinds(shown)[-2:],
        shown[-2]["content"],
        "input 2: question 2\n  INTERRUPTED, not ended" in traced,
    ) == (("RUNNING", "interrupted"), BEGUN, "question 2", True)


async def test_an_input_that_waits_before_its_first_plan_is_unfinished(tmp_path: Path) -> None:
    graph = agent(InMemorySaver(), "Answer.", "Finished.")
    await Session(graph, "s1").run("one")
    await graph.ainvoke(says("two"), thread(), interrupt_before=["plan"])
    session = Session(graph, "s1")

    before = await session.status(), [event.get("content") for event in await session.events(last=2)]
    result = await session.resume()

    assert (before, result.answer, await session.status()) == (("RUNNING", ["two", None]), "Finished.", "COMPLETED")


async def test_an_input_of_which_only_the_first_checkpoint_is_stored_is_shown() -> None:
    saver, copy = InMemorySaver(), InMemorySaver()
    graph = agent(saver, "Answer.")
    await Session(graph, "s1").run("one")
    async for found in saver.alist(thread(), filter={"source": "input"}):
        at: Any = {"configurable": {"thread_id": "s1", "checkpoint_ns": ""}}
        await copy.aput(at, found.checkpoint, found.metadata, found.checkpoint["channel_versions"])
    session = Session(agent(copy, "Finished."), "s1")

    before = await session.status(), [event.get("content") for event in await session.events(last=2)]
    result = await session.resume()

    assert (before, result.answer) == (("RUNNING", ["one", None]), "Finished.")


async def test_a_follower_reads_the_input_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    await killed(url, 2)

    async with open_saver(url) as saver:
        reader = EventReader(None, saver, SESSION)
        first = await reader.read_early() or []
        await Session(agent(saver, "Finished."), SESSION).resume()
        later = await reader.read_early() or []

    assert (kinds([event for _, event in first])[-2:], [(at, event["type"]) for at, event in later]) == (
        BEGUN,
        [(7, "plan"), (8, "agent_response"), (9, "status")],
    )


async def test_a_follower_reads_a_new_input_without_the_conversation_before(monkeypatch: pytest.MonkeyPatch) -> None:
    saver = InMemorySaver()
    graph = agent(saver, "Answer.", "Another.")
    await Session(graph, "s1").run("one")
    reader, whole = EventReader(graph, saver, "s1"), saver.aget_delta_channel_history
    await reader.read()
    read: list[str] = []

    async def recorded(*, config: Any, channels: Any) -> Any:
        read.extend(channels)
        return await whole(config=config, channels=channels)

    await graph.ainvoke(says("two"), thread(), interrupt_before=["plan"])
    monkeypatch.setattr(saver, "aget_delta_channel_history", recorded)
    await reader.read()

    assert ([event.get("content") for event in reader.pending], read) == (["two", None], [])
