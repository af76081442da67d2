"""Aborts of a run from any task, thread or process at any moment, and the session afterwards."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl
from langgraph.store.memory import InMemoryStore
from langgraph.types import interrupt

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, Session, SessionStatus, create_graph_agent
from graph_agent.errors import InputError
from graph_agent.mcp import open_mcp_tools
from graph_agent.persistence import open_saver
from graph_agent.session.control import SessionCommands
from graph_agent.session.results import CallState, Token
from tests.support.agents import asks, dialogue, echo, marked, says, thread
from tests.support.gates import Gate, GatedModel, gated_tool, nothing_under_way, until
from tests.support.mcp_servers.running import lines, stdio
from tests.support.result_texts import UNKNOWN
from tests.support.sessions import (
    GO_ON,
    NOT_KNOWN,
    NOT_RUN,
    READING,
    new_session,
    noted,
    put_note,
    start_steered_process,
    stored_messages,
    takes_new_input,
    wait_for_results,
)
from tests.support.steered_run import opened

WORK = asks(("1", "work", {}))


async def test_a_sibling_task_stops_a_wave() -> None:
    gate = Gate()
    wave = asks(("1", "echo", {"text": "x"}), ("2", "work", {}))
    talk = new_session(ScriptedChatModel([wave, *GO_ON]), echo, gated_tool(gate))
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()
    await wait_for_results(talk, 1)

    stopped = await talk.abort()
    result = await run

    assert (
        stopped,
        gate.cancelled,
        result.status,
        result.stop_reason,
        result.answer,
        result.results,
        result.pending,
        dialogue(await stored_messages(talk)),
        [event["type"] for event in await talk.events()][-4:],
        await takes_new_input(talk),
    ) == (
        True,
        True,
        SessionStatus.ABORTED,
        "aborted",
        "Stopped on request\n\nDone: echo.\nStarted, outcome unknown: work.",
        {"1": "x", "2": {"error": NOT_KNOWN}},
        [],
        [
            ("human", "go"),
            ("ai", ""),
            ("tool", "x"),
            ("tool", NOT_KNOWN),
            ("ai", "Stopped on request\n\nDone: echo.\nStarted, outcome unknown: work."),
        ],
        ["tool_result", "tool_result", "agent_response", "status"],
        True,
    )


async def test_a_run_is_stopped_while_the_model_plans() -> None:
    gate = Gate()
    talk = new_session(GatedModel(responses=[WORK, *GO_ON][1:], before={1: gate}), echo)
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()

    await talk.abort()
    result = await run
    gate.open()

    assert (gate.cancelled, result.status, result.answer, await takes_new_input(talk)) == (
        True,
        SessionStatus.ABORTED,
        "Stopped on request",
        True,
    )


async def test_the_streamed_part_of_an_answer_is_kept() -> None:
    gate = Gate()
    talk = new_session(GatedModel(responses=["No more actions.", "Half an answer.", *GO_ON], within={2: gate}), echo)
    tokens: list[str] = []

    async def listen() -> None:
        async for part in talk.stream("go"):
            tokens.extend([part.text] if isinstance(part, Token) else [])

    run = asyncio.create_task(listen())
    await gate.reached()
    await until(lambda: tokens)

    await talk.abort()
    await run

    result = await talk.driver.result()
    assert (tokens[0], result.answer, result.status, await takes_new_input(talk)) == (
        "Half",
        "Half\n\nStopped on request",
        SessionStatus.ABORTED,
        True,
    )


def _in_a_thread(work: Callable[[], Any]) -> Any:
    return asyncio.to_thread(lambda: asyncio.run(work()))


@pytest.mark.parametrize("store", [None, InMemoryStore()], ids=["memory", "store"])
async def test_another_thread_stops_a_run(store: Any) -> None:
    gate = Gate()
    talk = new_session(ScriptedChatModel([WORK, *GO_ON]), gated_tool(gate), store=store)
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()

    stopped = await _in_a_thread(talk.abort)
    result = await run

    assert (stopped, result.status, gate.cancelled, await takes_new_input(talk)) == (
        True,
        SessionStatus.ABORTED,
        True,
        True,
    )


def test_a_blocking_run_is_stopped_from_another_thread() -> None:
    gate = Gate()
    talk = new_session(ScriptedChatModel([WORK]), gated_tool(gate))

    def stop() -> None:
        async def when_reached() -> None:
            await gate.reached()
            await talk.abort()

        asyncio.run(when_reached())

    other = threading.Thread(target=stop)
    other.start()
    result = talk.graph.invoke(says("go"), thread())
    other.join()

    assert (result["status"], gate.cancelled, nothing_under_way()) == ("ABORTED", True, True)


async def test_a_tools_child_process_is_killed() -> None:
    children: list[asyncio.subprocess.Process] = []

    @tool
    async def shell() -> str:
        """Run a program that takes its time."""
        process = await asyncio.create_subprocess_exec("sleep", "600")
        children.append(process)
        try:
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await asyncio.shield(process.wait())
        return "slept"

    talk = new_session(ScriptedChatModel([asks(("1", "shell", {})), *GO_ON]), shell)
    run = asyncio.create_task(talk.run("go"))
    await until(lambda: children)

    await talk.abort()
    result = await run
    # This also closes the transport of the process, before the test's loop ends.
    await children[0].wait()

    assert (result.results, psutil.pid_exists(children[0].pid), await takes_new_input(talk)) == (
        {"1": {"error": NOT_KNOWN}},
        False,
        True,
    )


async def test_a_blocking_tool_is_not_waited_for() -> None:
    gate, finished = Gate(), threading.Event()

    @tool
    def block() -> str:
        """Stand still in a thread."""
        gate.passing_blocking()
        finished.set()
        return "never heard"

    talk = new_session(ScriptedChatModel([asks(("1", "block", {})), *GO_ON]), block)
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()

    await talk.abort()
    result = await run
    usable = await takes_new_input(talk)
    gate.open()
    await until(finished.is_set)

    assert (result.status, result.results, usable) == (SessionStatus.ABORTED, {"1": {"error": NOT_KNOWN}}, True)


async def test_an_mcp_server_receives_the_cancellation(tmp_path: Path) -> None:
    async with open_mcp_tools({"demo": stdio(tmp_path)}) as tools:
        talk = new_session(ScriptedChatModel([asks(("1", "hang", {})), *GO_ON]), *tools)
        run = asyncio.create_task(talk.run("go"))
        await until(lambda: lines(tmp_path, "effects") == ["hanging"])

        await talk.abort()
        result = await run
        await until(lambda: lines(tmp_path, "effects") == ["hanging", "cancelled"])

        assert (result.results, await takes_new_input(talk)) == ({"1": {"error": NOT_KNOWN}}, True)


async def test_calls_that_wait_for_a_slot_are_not_begun_and_those_that_read_change_nothing() -> None:
    gate, other = Gate(), Gate()
    wave = asks(("1", "look", {}), ("2", "work", {}))
    tools = gated_tool(gate, "look", effect="read"), gated_tool(other)
    talk = new_session(ScriptedChatModel([wave, *GO_ON]), *tools, config=LoopConfig(max_parallel_calls=1))
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()

    await talk.abort()
    result = await run

    assert (result.results, [call["id"] for call in result.pending], result.answer) == (
        {"1": {"error": READING}, "2": {"error": NOT_RUN}},
        ["2"],
        "Stopped on request\n\nFailed: look.\nNot begun: work.",
    )


@pytest.mark.parametrize(
    ("marks", "error"), [({}, NOT_KNOWN), ({"effect": "read"}, READING)], ids=["writing", "reading"]
)
@pytest.mark.parametrize("ledger", [False, True])
async def test_a_session_that_waits_for_a_person_is_settled(marks: Any, error: str, ledger: bool) -> None:
    @tool
    async def order() -> str:
        """Do something, then ask a person."""
        return str(interrupt("May I?"))

    wave = asks(("1", "echo", {"text": "x"}), ("2", "order", {}))
    config = LoopConfig(effect_ledger=ledger)
    talk = new_session(ScriptedChatModel([wave, *GO_ON]), echo, marked(order, **marks), config=config)
    waiting = await talk.run("go")

    stopped = await talk.abort()
    result = await talk.driver.result()

    assert (
        [interrupt.value for interrupt in waiting.interrupts],
        stopped,
        result.status,
        result.results,
        result.interrupts,
        await takes_new_input(talk),
    ) == (["May I?"], True, SessionStatus.ABORTED, {"1": "x", "2": {"error": error}}, [], True)


NOT_STARTED = "Not run: the run was stopped before this call had started."


@pytest.mark.parametrize("ledger", [False, True])
async def test_a_session_that_was_cut_off_in_a_wave_is_settled(ledger: bool) -> None:
    gate = Gate()
    wave = asks(("1", "work", {}), ("2", "later", {}))
    options: dict[str, Any] = {"config": LoopConfig(effect_ledger=ledger, max_parallel_calls=1)}
    talk = new_session(ScriptedChatModel([wave, *GO_ON]), gated_tool(gate), gated_tool(Gate(), "later"), **options)
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)

    stopped = await talk.abort()
    result = await talk.driver.result()

    assert (stopped, result.status, result.results, await takes_new_input(talk)) == (
        True,
        SessionStatus.ABORTED,
        {"1": {"error": NOT_KNOWN}, "2": {"error": NOT_STARTED if ledger else NOT_KNOWN}},
        True,
    )


async def test_another_process_is_stopped_through_its_database(tmp_path: Path) -> None:
    process = await start_steered_process(tmp_path)
    async with opened(tmp_path / "s.db", GO_ON) as talk:
        stopped = await talk.abort()
        out, _ = await process.ended()
        usable = await takes_new_input(talk)

    assert (stopped, json.loads(out), usable) == (
        True,
        {
            "answer": "Stopped on request\n\nStarted, outcome unknown: work.",
            "status": "ABORTED",
            "results": {"1": {"error": NOT_KNOWN}},
        },
        True,
    )


async def test_another_process_cannot_be_stopped_without_a_store(tmp_path: Path) -> None:
    process = await start_steered_process(tmp_path)
    async with open_saver(f"sqlite:///{tmp_path}/s.db") as saver:
        graph = create_graph_agent(ScriptedChatModel([]), checkpointer=saver)

        with pytest.raises(InputError, match="can only be reached through a Store"):
            await Session(graph, "s1").abort()

    process.kill()
    await process.ended()


async def test_another_process_is_stopped_through_the_store_alone() -> None:
    gate, store, one, other = Gate(), InMemoryStore(), InMemorySaver(), InMemorySaver()
    # Two savers over the same threads, as of two processes on one server's database.
    other.storage, other.writes, other.blobs = one.storage, one.writes, one.blobs
    talk = new_session(ScriptedChatModel([WORK, *GO_ON]), gated_tool(gate), checkpointer=one, store=store)
    elsewhere = new_session(ScriptedChatModel([]), gated_tool(gate), checkpointer=other, store=store)
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()

    stopped = await elsewhere.abort()
    result = await run

    assert (stopped, gate.cancelled, result.status, result.results, await takes_new_input(talk)) == (
        True,
        True,
        SessionStatus.ABORTED,
        {"1": {"error": NOT_KNOWN}},
        True,
    )


async def test_an_abort_without_a_listener_is_withdrawn() -> None:
    @tool
    async def ask() -> str:
        """Ask a person."""
        return str(interrupt("Sure?"))

    store = InMemoryStore()
    talk = new_session(ScriptedChatModel([asks(("1", "ask", {})), *GO_ON]), ask, store=store)
    await talk.run("go")

    stopped = await talk.abort()

    assert (stopped, await talk.status(), store.search(("graph_agent",)), await takes_new_input(talk)) == (
        True,
        SessionStatus.ABORTED,
        [],
        True,
    )


async def test_an_abort_works_with_a_slow_clock() -> None:
    gate, store = Gate(), InMemoryStore()
    await put_note(store, "s1", "abort", at_ns=5)
    talk = new_session(ScriptedChatModel([WORK, *GO_ON]), gated_tool(gate), store=store)
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()

    await put_note(store, "s1", "abort", at_ns=7)
    result = await run

    assert (result.status, await noted(store, "s1"), await takes_new_input(talk)) == (SessionStatus.ABORTED, [], True)


async def test_a_session_that_a_killed_process_left_is_settled(tmp_path: Path) -> None:
    process = await start_steered_process(tmp_path)
    process.kill()
    await process.ended()

    async with opened(tmp_path / "s.db", GO_ON) as talk:
        stopped = await talk.abort()
        result = await talk.driver.result()
        usable = await takes_new_input(talk)

    assert (stopped, result.status, result.results, (tmp_path / "log").read_text(), usable) == (
        True,
        SessionStatus.ABORTED,
        {"1": {"error": NOT_KNOWN}},
        "at work\n",
        True,
    )


async def test_there_is_nothing_to_stop_in_an_idle_session() -> None:
    talk = new_session(ScriptedChatModel(["One.", *GO_ON[1:]]))
    before = await talk.abort()
    await talk.run("one")

    assert (before, await talk.abort(), await talk.status(), await takes_new_input(talk)) == (
        False,
        False,
        SessionStatus.COMPLETED,
        True,
    )


async def test_a_delegates_run_is_stopped_with_it() -> None:
    gate = Gate()
    inner = create_graph_agent(ScriptedChatModel([WORK]), tools=[gated_tool(gate)])
    wave = asks(("1", "delegate_to_r", {"task": "t"}))
    talk = new_session(ScriptedChatModel([wave, *GO_ON]), delegates=[GraphDelegate("r", "R.", inner)])
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()

    await talk.abort()
    result = await run

    assert (gate.cancelled, result.status, list(result.results), await takes_new_input(talk)) == (
        True,
        SessionStatus.ABORTED,
        ["1"],
        True,
    )


async def test_a_cancelled_run_can_be_resumed() -> None:
    gate = Gate()
    wave = asks(("1", "echo", {"text": "x"}), ("2", "look", {}))
    talk = new_session(ScriptedChatModel([wave, *GO_ON]), echo, gated_tool(gate, "look", effect="read"))
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()
    await wait_for_results(talk, 1)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    left = nothing_under_way()
    gate.open()

    result = await talk.resume()

    assert (run.cancelled(), left, result.status, result.results) == (
        True,
        True,
        SessionStatus.COMPLETED,
        {"1": "x", "2": "worked"},
    )


async def test_a_writing_call_of_a_cancelled_run_is_not_run_again() -> None:
    gate = Gate()
    talk = new_session(ScriptedChatModel([WORK, *GO_ON]), gated_tool(gate))
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    gate.open()

    result = await talk.resume()

    assert (result.status, result.results) == (SessionStatus.COMPLETED, {"1": {"error": UNKNOWN}})


async def test_a_drained_run_can_be_resumed() -> None:
    gate, control = Gate(), RunControl()
    talk = new_session(ScriptedChatModel([WORK, *GO_ON]), gated_tool(gate))
    run = asyncio.create_task(talk.graph.ainvoke(says("go"), thread(), control=control))
    await gate.reached()

    control.request_drain()
    gate.open()
    with pytest.raises(GraphDrained):
        await run
    left = nothing_under_way()
    result = await talk.resume()

    assert (left, result.status, result.results, result.answer) == (
        True,
        SessionStatus.COMPLETED,
        {"1": "worked"},
        "Here I am.",
    )


async def test_an_abandoned_stream_can_be_resumed() -> None:
    gate = Gate()
    talk = new_session(ScriptedChatModel([WORK, *GO_ON]), gated_tool(gate, effect="read"))
    parts = talk.stream("go")
    while not isinstance(await anext(parts), CallState):
        pass
    await parts.aclose()

    left = nothing_under_way()
    gate.open()
    result = await talk.resume()

    assert (left, result.answer, result.results) == (True, "Here I am.", {"1": "worked"})


async def test_an_abort_that_comes_twice_is_one() -> None:
    gate = Gate()
    talk = new_session(ScriptedChatModel([WORK, *GO_ON]), gated_tool(gate))
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()

    stopped = list(await asyncio.gather(talk.abort(), talk.abort()))
    result = await run

    assert (stopped, result.status, await talk.abort(), await takes_new_input(talk)) == (
        [True, True],
        SessionStatus.ABORTED,
        False,
        True,
    )


async def test_a_run_that_begins_while_a_stopped_one_is_settled_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()

    @tool
    def ask() -> str:
        """Ask a person."""
        return str(interrupt("yes?"))

    model = ScriptedChatModel([asks(("1", "ask", {})), WORK, *GO_ON])
    talk = Session(create_graph_agent(model, tools=[ask, gated_tool(gate)], checkpointer=InMemorySaver()), "s1")
    await talk.run("go")
    begun: list[asyncio.Task[Any]] = []

    async def begins_now(self: SessionCommands) -> bool:
        if not begun:
            begun.append(asyncio.create_task(talk.run("work")))
            await gate.reached()
        return False

    monkeypatch.setattr(SessionCommands, "_was_taken_elsewhere", begins_now)
    stopped = await talk.abort()
    result = await begun[0]

    assert (stopped, result.status, await takes_new_input(talk)) == (True, SessionStatus.ABORTED, True)
