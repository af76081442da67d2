"""Delegation in the background to A2A agents that are built with the plain SDK."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.tasks import TaskUpdater
from a2a.types import Part
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import A2ADelegate, ScriptedChatModel, Session, create_graph_agent
from tests.support.a2a_servers import PlainAgent, answer, serving_plain
from tests.support.agents import asks, dialogue
from tests.support.gates import Gate, until
from tests.support.sessions import stored_messages

DELEGATION = asks(("a", "delegate_to_r", {"task": "Look.", "background": True}))
WAIT = asks(("w", "wait_for_background", {}))
ENDED = "[Notice of the framework: the background task a of the agent 'r' has ended: success.]"


def session_with(url: str, saver: InMemorySaver, *replies: str) -> Session:
    """The session `s1` of an agent of its own, as after a restart."""
    delegate = A2ADelegate("r", url, background=True)
    return Session(create_graph_agent(ScriptedChatModel(list(replies)), delegates=[delegate], checkpointer=saver), "s1")


def gated_agent(gate: Gate) -> PlainAgent:
    async def work(text: str, updater: TaskUpdater, context: RequestContext) -> None:
        await updater.start_work()
        await gate.passing()
        await answer(updater, Part(text="Found."))

    return PlainAgent(work)


async def notices(talk: Session) -> list[str]:
    """The notices in a session's history."""
    return [text for _, text in dialogue(await stored_messages(talk)) if text.startswith("[Notice")]


async def test_a_remote_task_goes_on_and_another_process_finds_its_result() -> None:
    gate, saver = Gate(), InMemorySaver()
    with serving_plain(agent := gated_agent(gate)) as url:
        first = await session_with(url, saver, DELEGATION, "Asked.", "Not yet.").run("Ask.")
        running = await session_with(url, saver, "Not yet.").run("And?")
        gate.open()
        restarted = session_with(url, saver, WAIT, "It is found.")
        last = await restarted.run("Now?")

    [notice] = await notices(restarted)
    assert (
        [result.answer for result in (first, running, last)],
        notice.startswith(ENDED),
        "Found." in notice,
        len(agent.inputs),
    ) == (["Asked.", "Not yet.", "It is found."], True, True, 1)


async def test_a_question_of_a_remote_task_is_reported_once() -> None:
    asked, saver = threading.Event(), InMemorySaver()

    async def work(text: str, updater: TaskUpdater, context: RequestContext) -> None:
        await updater.requires_input(updater.new_agent_message([Part(text="Which city?")]))
        asked.set()

    with serving_plain(PlainAgent(work)) as url:
        talk = session_with(url, saver, DELEGATION, "Asked.", "It asks.", "Still.")
        await talk.run("Ask.")
        await until(asked.is_set)
        answers = [(await talk.run("And?")).answer, (await talk.run("Now?")).answer]

    [notice] = await notices(talk)
    assert (answers, "waits for a person" in notice, "Which city?" in notice) == (["It asks.", "Still."], True, True)


async def test_a_task_that_the_remote_agent_has_lost_is_unknown() -> None:
    gate, saver = Gate(), InMemorySaver()
    with serving_plain(gated_agent(gate)) as url:
        await session_with(url, saver, DELEGATION, "Asked.").run("Ask.")
        gate.open()
    with serving_plain(gated_agent(gate)) as url:
        talk = session_with(url, saver, "It is lost.")
        result = await talk.run("And?")

    events: list[Any] = await talk.events()
    ended = [(event["status"], event["content"]) for event in events if event["type"] == "background_result"]
    assert (result.answer, ended) == ("It is lost.", [("unknown", "The agent 'r' has no such task any more.")])


async def test_an_agent_that_cannot_be_reached_keeps_its_task_open(caplog: pytest.LogCaptureFixture) -> None:
    gate, saver = Gate(), InMemorySaver()
    with serving_plain(gated_agent(gate)) as url:
        await session_with(url, saver, DELEGATION, "Asked.").run("Ask.")
        gate.open()
    talk = session_with(url, saver, "Later.")

    result = await talk.run("And?")

    reported = [record.message for record in caplog.records if "cannot be reached now" in record.message]
    assert (result.answer, await notices(talk), len(reported)) == ("Later.", [], 1)
