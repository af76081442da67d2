"""The reported state of each call: before, during and after its run, and after a crash."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.types import interrupt

from graph_agent import LoopConfig, ScriptedChatModel, Session
from tests.support.agents import asks, echo
from tests.support.gates import Gate, gated_tool
from tests.support.sessions import new_session, start_steered_process, wait_for_results
from tests.support.steered_run import opened

DONE = ["No more actions.", "Done."]


async def states_of(talk: Session) -> list[tuple[str, str, str]]:
    return [(call.id, call.name, call.state) for call in await talk.calls()]


async def test_a_session_without_input_has_no_calls() -> None:
    assert await new_session(ScriptedChatModel([])).calls() == []


async def test_the_states_of_a_wave_that_runs() -> None:
    gate = Gate()
    plan = (
        '{"status": "done", "action": "a", "tools": ['
        '{"id": "a", "tool": "echo", "args": {"text": "x"}}, {"id": "b", "tool": "serch", "args": {}},'
        '{"id": "c", "tool": "work", "args": {}}, {"id": "d", "tool": "later", "args": {}},'
        '{"id": "e", "tool": "echo", "args": {"text": "${c}"}, "needs": ["c"]},'
        '{"id": "f", "tool": "echo", "args": {"text": "${b}"}, "needs": ["b"]}]}'
    )
    model = ScriptedChatModel([plan, "Done."])
    config = LoopConfig(tool_calling="wave", max_parallel_calls=1)
    talk = new_session(model, echo, gated_tool(gate), gated_tool(gate, "later"), config=config)
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()
    await wait_for_results(talk, 2)

    meanwhile = await states_of(talk)
    gate.open()
    await run

    calls = [("a", "echo"), ("b", "serch"), ("c", "work"), ("d", "later"), ("e", "echo"), ("f", "echo")]
    then = ["finished", "skipped", "started", "planned", "planned", "planned"]
    at_last = ["finished", "skipped", "finished", "finished", "finished", "skipped"]
    assert (meanwhile, await states_of(talk)) == (
        [(*call, state) for call, state in zip(calls, then, strict=True)],
        [(*call, state) for call, state in zip(calls, at_last, strict=True)],
    )


async def test_a_plan_whose_superstep_was_not_committed_has_its_calls_once() -> None:
    talk = new_session(ScriptedChatModel([asks(("1", "echo", {"text": "x"}), ("2", "echo", {"text": "y"}))]), echo)
    async with aclosing(talk.stream("go")) as parts:
        async for part in parts:
            if part.type == "call":
                break

    assert [id_ for id_, _, _ in await states_of(talk)] == ["1", "2"]


async def test_only_calls_of_the_newest_input_are_returned() -> None:
    script = [asks(("1", "echo", {"text": "x"})), *DONE, asks(("2", "echo", {"text": "y"})), *DONE]
    talk = new_session(ScriptedChatModel(script), echo)
    await talk.run("one")

    await talk.run("two")

    assert await states_of(talk) == [("2", "echo", "finished")]


@pytest.mark.parametrize(
    ("ledger", "marks", "states"),
    [
        (False, {}, ("unknown", "unknown")),
        (True, {}, ("started", "started")),
        (True, {"effect": "read"}, ("unknown", "unknown")),
    ],
    ids=["no ledger", "ledger", "reading"],
)
async def test_call_states_after_a_run_was_cut_off(ledger: bool, marks: Any, states: tuple[Any, Any]) -> None:
    gate = Gate()
    wave = asks(("1", "work", {}), ("2", "later", {}), ("3", "echo", {"text": "x"}))
    config = LoopConfig(effect_ledger=ledger)
    tools = gated_tool(gate, **marks), gated_tool(Gate(), "later", **marks), echo
    talk = new_session(ScriptedChatModel([wave]), *tools, config=config)
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()
    await wait_for_results(talk, 1)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)

    assert await states_of(talk) == [("1", "work", states[0]), ("2", "later", states[1]), ("3", "echo", "finished")]


async def test_a_call_that_waits_for_a_person_has_started() -> None:
    @tool
    async def ask() -> str:
        """Ask a person."""
        return str(interrupt("May I?"))

    wave = asks(("1", "echo", {"text": "x"}), ("2", "ask", {}))
    talk = new_session(ScriptedChatModel([wave, *DONE]), echo, ask)
    await talk.run("go")
    waiting = await states_of(talk)

    await talk.resume("yes")

    assert (waiting, await states_of(talk)) == (
        [("1", "echo", "finished"), ("2", "ask", "started")],
        [("1", "echo", "finished"), ("2", "ask", "finished")],
    )


async def test_call_states_of_another_process_before_and_after_its_death(tmp_path: Path) -> None:
    process = await start_steered_process(tmp_path)
    async with opened(tmp_path / "s.db", DONE) as talk:
        meanwhile = await states_of(talk)
        process.kill()
        await process.ended()

        assert (meanwhile, await states_of(talk)) == (
            [("1", "work", "started")],
            [("1", "work", "unknown")],
        )
