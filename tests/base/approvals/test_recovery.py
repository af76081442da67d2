"""Sessions that are stopped, aborted, steered or continued while calls wait for approval."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.types import Command

from graph_agent.approvals import approve, edit, reject
from graph_agent.errors import InputError
from graph_agent.persistence import open_saver
from tests.support.agents import asks, kinds, thread
from tests.support.approvals import Desk, asked
from tests.support.budgets import Clock
from tests.support.result_texts import NOT_STARTED, UNDECIDED
from tests.support.warm_process import warm_python

TWO = asks(("1", "write", {"path": "a"}), ("2", "write", {"path": "b"}))
MIXED = asks(("1", "write", {"path": "a"}), ("2", "read", {"path": "b"}))


async def test_a_session_waits_across_processes(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path / 'sessions.db'}"
    async with open_saver(address) as saver:
        await Desk(MIXED, checkpointer=saver).session.run("go")

    async with open_saver(address) as saver:
        other = Desk("Done.", checkpointer=saver)
        result = await other.session.resume(approve())

    assert (other.ran, result.results) == (["wrote a"], {"1": "wrote a", "2": "read b"})


async def test_an_older_checkpoint_whose_request_has_an_answer_takes_no_other_one() -> None:
    desk = Desk(MIXED, "Done.", "Done.")
    await desk.session.run("go")
    waiting = await desk.graph.aget_state(thread())
    await desk.session.resume(approve())

    with pytest.raises(InputError) as refused:
        await desk.graph.ainvoke(Command(resume=reject()), waiting.config)
    await desk.graph.ainvoke(None, waiting.config)
    result = await desk.session.resume(reject())

    assert ("has been answered" in str(refused.value), desk.ran, "rejected" in result.results["1"]["error"]) == (
        True,
        ["read b", "wrote a"],
        True,
    )


async def test_a_process_killed_while_a_session_waits_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    command = [warm_python(), "-m", "tests.support.killed_approval", str(path)]
    killed = await asyncio.create_subprocess_exec(*command)
    status = await asyncio.wait_for(killed.wait(), 120)

    async with open_saver(f"sqlite:///{path}") as saver:
        desk = Desk("Done.", checkpointer=saver)
        waiting = await desk.session.resume()
        result = await desk.session.resume(approve())

    assert (status, asked(waiting.interrupts), result.results) == (
        -9,
        [[("write", {"path": "a"})]],
        {"1": "wrote a", "2": "read b"},
    )


async def _crash(*_: Any, **__: Any) -> Any:
    raise RuntimeError("crash")


async def crashed_after_decisions(monkeypatch: pytest.MonkeyPatch, at: str) -> Desk:
    """A session whose run crashed at a function, after a person approved one call and rejected the other."""
    desk = Desk(TWO, "Done.", config={"effect_ledger": True})
    await desk.session.run("go")
    with monkeypatch.context() as patch:
        patch.setattr(at, _crash)
        with pytest.raises(RuntimeError, match="crash"):
            await desk.session.resume({"decisions": [approve(), reject("Keep b.")]}, decided_by="ana")
    return desk


CRASHES = ["graph_agent.nodes.plan.apply_edits", "graph_agent.core.execution.run_call.run_in_slot"]
REJECTED = "Not run: a person rejected this call. Reason: Keep b."


@pytest.mark.parametrize("at", CRASHES)
async def test_a_resume_after_a_crash_applies_the_decisions_that_were_taken_before(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = await crashed_after_decisions(monkeypatch, at)
    await desk.session.resume()

    assert (desk.ran, await desk.answers(), [each["decided_by"] for each in await desk.decisions()]) == (
        ["wrote a"],
        {"1": "wrote a", "2": REJECTED},
        ["ana", "ana"],
    )


@pytest.mark.parametrize(
    ("at", "answers"), [(CRASHES[0], (UNDECIDED, UNDECIDED)), (CRASHES[1], (NOT_STARTED, REJECTED))]
)
async def test_new_input_after_a_crash_settles_decided_calls_that_have_not_run(
    at: str, answers: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = await crashed_after_decisions(monkeypatch, at)
    await desk.session.run("Hello?")

    assert (desk.ran, await desk.answers(), [each["decided_by"] for each in await desk.decisions()]) == (
        [],
        dict(zip("12", answers, strict=True)),
        ["ana", "ana"],
    )


async def test_a_decision_that_was_stored_without_its_checkpoint_stays_in_the_history(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(TWO, "Done.")
    await desk.session.run("go")
    saver: Any = desk.graph.checkpointer
    put = saver.aput

    async def crash(*_: Any, **__: Any) -> Any:
        raise RuntimeError("crash")

    monkeypatch.setattr(saver, "aput", crash)
    with pytest.raises(RuntimeError, match="crash"):
        await desk.session.resume(approve(), decided_by="ana")
    monkeypatch.setattr(saver, "aput", put)
    await desk.session.run("Hello?")

    assert ([each["decided_by"] for each in await desk.decisions()], await desk.answers(), desk.ran) == (
        ["ana", "ana"],
        {"1": UNDECIDED, "2": UNDECIDED},
        [],
    )


async def test_new_input_settles_the_calls_that_wait_as_not_run() -> None:
    desk = Desk(MIXED, "Hello.")
    await desk.session.run("go")
    result = await desk.session.run("Hello?")
    results = [each for each in await desk.session.events() if each["type"] == "tool_result"]

    assert (result.answer, await desk.answers(), [(each["id"], each["status"]) for each in results]) == (
        "Hello.",
        {"1": UNDECIDED, "2": "read b"},
        [("2", "success"), ("1", "skipped")],
    )


async def test_new_input_after_partial_decisions_settles_the_undecided_calls_only() -> None:
    desk = Desk(TWO, "Hello.")
    await desk.session.run("go")
    await desk.session.resume({"decisions": {"2": approve()}})
    await desk.session.run("Hello?")

    assert list((await desk.answers()).items()) == [("1", UNDECIDED), ("2", "wrote b")]


async def test_an_abort_settles_the_calls_that_wait_as_not_run() -> None:
    desk = Desk(MIXED)
    await desk.session.run("go")

    aborted = await desk.session.abort()

    assert (aborted, await desk.session.status(), await desk.answers(), desk.ran) == (
        True,
        "ABORTED",
        {"1": "Not run: the run was stopped before its turn came.", "2": "read b"},
        ["read b"],
    )
    with pytest.raises(InputError, match="nothing to resume"):
        await desk.session.resume(approve())


async def test_steering_while_a_session_waits_reaches_the_model_after_the_wave() -> None:
    desk = Desk(MIXED, "Done.")
    await desk.session.run("go")
    await desk.session.steer("Be quick.")
    result = await desk.session.resume(approve())
    messages = desk.model.requests[-1].messages

    assert (result.answer, [message.text for message in messages[-3:]]) == (
        "Done.",
        ["wrote a", "read b", "While you were working, the user said: Be quick."],
    )


async def test_a_resume_without_an_answer_asks_again_and_repeats_no_call() -> None:
    desk = Desk(MIXED, "Done.")
    first = await desk.session.run("go")
    again = await desk.session.resume()

    assert (asked(again.interrupts), desk.ran, kinds(await desk.session.events()).count("approval_request")) == (
        asked(first.interrupts),
        ["read b"],
        1,
    )


async def test_the_time_that_a_person_takes_does_not_count_for_the_deadline(clock: Clock) -> None:
    desk = Desk(MIXED, "Done.", config={"deadline_s": 60})
    await desk.session.run("go")
    clock.forward(3600)
    result = await desk.session.resume(approve())

    assert (result.stop_reason, result.answer) == ("completed", "Done.")


async def test_a_fork_from_the_request_asks_again() -> None:
    desk = Desk(TWO, "Done.", "Forked.")
    await desk.session.run("go")
    at = (await desk.graph.aget_state(thread())).config
    await desk.session.resume(approve())

    forked: Any = await desk.graph.ainvoke(None, at)
    await desk.session.resume(reject())

    assert (asked(forked["__interrupt__"]), desk.ran, (await desk.session.events())[-2]["type"]) == (
        [[("write", {"path": "a"}), ("write", {"path": "b"})]],
        ["wrote a", "wrote b"],
        "agent_response",
    )


async def test_no_message_history_has_an_orphan_call_after_any_decision() -> None:
    desk = Desk(TWO, TWO, "Done.")
    await desk.session.run("go")
    await desk.session.resume({"decisions": [edit({"path": "c"}), reject()]})
    await desk.session.run("Go on.")
    messages = (await desk.graph.aget_state(thread())).values["messages"]
    calls = [call["id"] or "" for each in messages if isinstance(each, AIMessage) for call in each.tool_calls]
    answers = [each.tool_call_id for each in messages if isinstance(each, ToolMessage)]

    assert (sorted(calls), sorted(answers)) == (["1", "1#2", "2", "2#2"],) * 2
