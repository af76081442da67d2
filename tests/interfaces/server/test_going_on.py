"""Requests that are refused, stopped or repeated: a session executes each once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from langchain_core.messages import HumanMessage

from graph_agent import SessionMemory, create_graph_agent
from graph_agent.interfaces.server.problems import ProblemError
from graph_agent.server import ServerSettings
from tests.interfaces.server.hosting import (
    MINE,
    answered,
    ask,
    outcome_of,
    running,
    sessions_of,
    spec_of,
    start_run,
    with_results,
)
from tests.support.agents import asks
from tests.support.gates import Gate, GatedModel, gated_tool

CALLS_MINE = asks(("c1", "mine", {}))


async def test_a_request_that_is_refused_as_busy_leaves_the_other_alone() -> None:
    gate = Gate()
    graph = create_graph_agent(
        GatedModel([asks(("c1", "work", {})), "No more actions.", "Done."]), tools=[gated_tool(gate)]
    )
    async with asyncio.timeout(30), running(graph) as runs:
        first = await start_run(runs.host, ask(session_id="s"))
        await gate.reached()
        # It leaves before its run has received the busy error.
        async with runs.run(await spec_of(runs.host, ask(session_id="s")), streams=True) as second:
            pass
        gate.open()
        outcome = await outcome_of(first)

    assert (second.ended, outcome.status, outcome.text) == (True, "COMPLETED", "Done.")


async def test_a_disconnect_during_the_first_plan_aborts_the_session() -> None:
    gate = Gate()
    async with asyncio.timeout(30), running(create_graph_agent(GatedModel(["Done."], before={1: gate}))) as runs:
        async with runs.run(await spec_of(runs.host, ask(session_id="s")), streams=False):
            await gate.reached()
        events = await SessionMemory(runs.host.kept).get_session_events("s")

    assert [event["to"] for event in events if event["type"] == "status"] == ["RUNNING", "ABORTED"]


@pytest.mark.parametrize("session", [None, "s"])
async def test_repeated_text_with_results_is_delivered_once(session: str | None) -> None:
    gate = Gate()
    script = [asks(("c1", "mine", {}), ("c2", "work", {})), "No more actions.", "Done."]
    model = GatedModel(script, before={2: gate})
    graph = create_graph_agent(model, tools=[gated_tool(open_gate())])
    async with asyncio.timeout(30), running(graph) as runs:
        waiting = await answered(runs.host, ask(client_tools=[MINE], session_id=session))
        again = with_results(waiting.calls, "Be quick.", session_id=session)
        first = await start_run(runs.host, again)
        spec = await spec_of(runs.host, again)
        await gate.reached()
        refused = []
        for _ in range(2):
            with pytest.raises(ProblemError) as error:
                await answered(runs.host, again)
            refused.append(error.value.kind)
        gate.open()
        outcome = await outcome_of(first)
        events = await SessionMemory(runs.host.kept).get_session_events(spec.thread)
    asked = "\n".join(message.text for message in model.requests[-1].messages)

    assert (refused, outcome.text, asked.count("Be quick.")) == (["busy"] * 2, "Done.", 1)
    assert [event["content"] for event in events if event["type"] == "steering"] == (["Be quick."] if session else [])


@pytest.mark.parametrize("session", [None, "s"])
async def test_an_image_with_results_reaches_the_model(session: str | None) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    blocks = [{"type": "text", "text": "Like this one."}, image]
    model = GatedModel([CALLS_MINE, "No more actions.", "Done."])
    async with asyncio.timeout(30), running(create_graph_agent(model)) as runs:
        waiting = await answered(runs.host, ask(client_tools=[MINE], session_id=session))
        outcome = await answered(runs.host, with_results(waiting.calls, blocks, session_id=session))
    delivered = [message for message in model.requests[1].messages if isinstance(message, HumanMessage)][-1]

    assert (outcome.text, "Like this one." in delivered.text, delivered.content[1:]) == ("Done.", True, [image])


@pytest.mark.parametrize("session", [None, "s"])
@pytest.mark.parametrize("how", ["drain", "cancel"])
async def test_delivered_results_of_a_stopped_run_are_resumed(session: str | None, how: str) -> None:
    gate = Gate()
    model = GatedModel([CALLS_MINE, asks(("c2", "work", {})), "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=[gated_tool(gate, idempotent=True)])
    async with asyncio.timeout(30), running(graph) as runs:
        waiting = await answered(runs.host, ask(client_tools=[MINE], session_id=session))
        again = with_results(waiting.calls, "Be quick.", session_id=session)
        stopped = await start_run(runs.host, again)
        await gate.reached()
        if how == "drain":
            stopped.drain()
            gate.open()
        else:
            stopped.cancel()
        with pytest.raises(ProblemError) as error:
            await outcome_of(stopped)
        gate.open()
        outcome = await answered(runs.host, again)
    asked = "\n".join(message.text for message in model.requests[-1].messages)

    assert (error.value.kind, outcome.status, outcome.text) == ("stopping", "COMPLETED", "Done.")
    assert [asked.count(text) for text in ("did mine", "worked", "Be quick.")] == [1, 1, 1]


async def test_undelivered_results_and_text_of_a_stopped_run_are_resumed() -> None:
    async with (
        asyncio.timeout(30),
        running(create_graph_agent(model := GatedModel([CALLS_MINE, "No more actions.", "Done."]))) as runs,
    ):
        waiting = await answered(runs.host, ask(client_tools=[MINE]))
        again = with_results(waiting.calls, "Be quick.")
        stopped = await start_run(runs.host, again)
        stopped.drain()
        with pytest.raises(ProblemError):
            await outcome_of(stopped)
        outcome = await answered(runs.host, again)
    asked = "\n".join(message.text for message in model.requests[-1].messages)

    assert (outcome.text, asked.count("did mine"), asked.count("Be quick.")) == ("Done.", 1, 1)


async def test_a_request_cancelled_before_its_calls_were_sent_stores_nothing() -> None:
    gate = Gate()
    model = GatedModel([CALLS_MINE], before={1: gate})
    async with asyncio.timeout(30), running(create_graph_agent(model)) as runs:
        stopped = await start_run(runs.host, ask(client_tools=[MINE]))
        await gate.reached()
        stopped.cancel()
        with pytest.raises(ProblemError):
            await outcome_of(stopped)
        kept = [found async for found in runs.host.saver.alist(None)]

    assert kept == []


@pytest.mark.parametrize("session", ["s", None], ids=["deleted", "swept"])
async def test_no_run_starts_in_a_session_being_discarded(session: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = GatedModel([CALLS_MINE, "No more actions.", "Done."])
    outcomes: list[str] = []
    async with asyncio.timeout(30), running(create_graph_agent(model)) as runs:
        host = replace(runs.host, settings=ServerSettings(pending_ttl_s=1e-6))
        waiting = await answered(host, ask(client_tools=[MINE], session_id=session))
        delete = host.saver.adelete_thread

        async def deleting(thread: str) -> None:
            monkeypatch.undo()
            try:
                outcomes.append((await answered(host, with_results(waiting.calls, session_id=session))).status)
            except ProblemError as problem:
                outcomes.append(problem.kind)
            await delete(thread)

        monkeypatch.setattr(host.saver, "adelete_thread", deleting)
        await (sessions_of(runs).delete(session) if session else host.sweep())
        kept = [found async for found in host.saver.alist(None)]

    assert (outcomes, kept) == (["busy"], [])


def open_gate() -> Gate:
    gate = Gate()
    gate.open()
    return gate
