"""An answer applies only to the interrupt that is open when it is given."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.approvals import HeldCall, approve, respond
from graph_agent.errors import ConfigError, InputError, SyncInLoopError
from tests.support.agents import asks
from tests.support.approvals import Desk
from tests.support.gates import Gate, gated_tool

DONE = ["No more actions.", "Done."]


@tool
async def ask(about: str) -> str:
    """Ask a person."""
    return f"{about}: {interrupt(about)}"


@tool
async def ask_twice() -> str:
    """Ask a person for two things."""
    return f"{interrupt('first?')}, {interrupt('second?')}"


def session(*wave: tuple[str, str, dict[str, Any]], tools: tuple[Any, ...] = (ask, ask_twice)) -> Session:
    model = ScriptedChatModel([asks(*wave), *DONE])
    return Session(create_graph_agent(model, tools=tools, checkpointer=InMemorySaver()), "s1")


async def test_an_answer_is_refused_without_an_open_interrupt() -> None:
    gate = Gate()
    talk = session(("1", "work", {}), tools=(gated_tool(gate),))
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)

    with pytest.raises(InputError, match="has no open interrupt for the answer 'yes'"):
        await talk.resume("yes")


async def test_a_second_decision_is_refused_as_already_decided_during_the_run_and_after_it() -> None:
    gate = Gate()
    model = ScriptedChatModel([asks(("1", "work", {})), *DONE])
    agent = create_graph_agent(
        model, tools=[gated_tool(gate)], config=LoopConfig(approve="work"), checkpointer=InMemorySaver()
    )
    [asked] = (await agent.session("s1").run("go")).interrupts
    run = asyncio.create_task(agent.session("s1").resume(approve(), input_id="d1"))
    await gate.reached()

    with pytest.raises(InputError, match="already decided"):
        await agent.session("s1").resume({asked.id: approve()})
    gate.open()
    first = await run
    with pytest.raises(InputError, match="already decided"):
        await agent.session("s1").resume(approve(), input_id="d2")
    assert (await agent.session("s1").resume(approve(), input_id="d1")).answer == first.answer


async def test_an_answer_is_not_kept_for_the_next_question() -> None:
    talk = session(("1", "ask_twice", {}))
    await talk.run("go")
    await talk.resume("yes")

    asked = await talk.resume()
    result = await talk.resume("no")

    assert ([question.value for question in asked.interrupts], result.results) == (["second?"], {"1": "yes, no"})


async def test_an_answer_to_an_earlier_interrupt_is_refused() -> None:
    model = ScriptedChatModel([asks(("1", "ask", {"about": "a"})), asks(("2", "ask", {"about": "b"})), *DONE])
    talk = Session(create_graph_agent(model, tools=[ask], checkpointer=InMemorySaver()), "s1")
    first = (await talk.run("go")).interrupts[0]
    second = (await talk.resume({first.id: "yes"})).interrupts[0]

    with pytest.raises(InputError, match=f"not open: {first.id}. Open: {second.id}"):
        await talk.resume({first.id: "yes"})


async def test_one_answer_to_several_interrupts_is_refused_with_their_ids() -> None:
    talk = session(("1", "ask", {"about": "a"}), ("2", "ask", {"about": "b"}))
    first, second = (await talk.run("go")).interrupts

    with pytest.raises(InputError) as refused:
        await talk.resume("yes")

    assert str(refused.value) == (
        "Several interrupts are open; answer with a mapping of id to answer. "
        f"Open: {first.id} (a question), {second.id} (a question)."
    )


async def test_an_answered_interrupt_is_closed() -> None:
    talk = session(("1", "ask", {"about": "a"}), ("2", "ask", {"about": "b"}))
    first, second = (await talk.run("go")).interrupts

    left = await talk.resume({first.id: "yes"})
    result = await talk.resume("no")

    assert (left.interrupts, result.results) == ([second], {"1": "a: yes", "2": "b: no"})


@pytest.mark.parametrize("answer", [{}, {"approve": True}, False, ["yes"]], ids=str)
async def test_any_json_is_an_answer(answer: Any) -> None:
    talk = session(("1", "ask", {"about": "a"}))
    await talk.run("go")

    result = await talk.resume(answer)

    assert result.results == {"1": f"a: {answer}"}


# Approvals without a person, and blocking sessions


WRITES = [asks((str(number), "write", {"path": f"{number}"})) for number in (1, 2, 3)]


async def by_run(talk: Session, **options: Any) -> list[str]:
    result = await talk.run("go", **options)
    return [result.answer, *(each.answer for each in result.follow_ups)]


async def by_stream(talk: Session, **options: Any) -> list[str]:
    return [part.result.answer async for part in talk.stream("go", **options) if part.type == "done"]


@pytest.mark.parametrize("saver", [InMemorySaver, lambda: None], ids=["saver", "no saver"])
@pytest.mark.parametrize("of_session", [True, False], ids=["of the session", "of the run"])
@pytest.mark.parametrize("work", [by_run, by_stream])
async def test_a_callback_decides_on_each_call_of_a_run_and_its_follow_ups(
    work: Any, of_session: bool, saver: Any
) -> None:
    asked: list[str] = []

    async def decide(call: HeldCall) -> Any:
        asked.append(call["name"])
        named = {**respond("written by hand"), "decided_by": "ana"}
        return {"1": True, "2": False, "3": named}[call["arguments"]["path"]]

    desk = Desk(*WRITES[:2], "Done.", WRITES[2], "Done again.", checkpointer=saver())
    talk = Session(desk.graph, "s1", on_approval=decide if of_session else None)
    await talk.follow_up("more")

    answers = await work(talk, **({} if of_session else {"on_approval": decide}))

    decisions = [event for event in await talk.events() if event["type"] == "approval_decision"]
    assert (answers, desk.ran, asked, [(each["decision"], each["decided_by"]) for each in decisions]) == (
        ["Done.", "Done again."],
        ["wrote 1"],
        ["write"] * 3,
        [("approve", "on_approval"), ("reject", "on_approval"), ("respond", "ana")],
    )


async def test_a_call_that_is_approved_for_good_is_not_asked_again() -> None:
    desk = Desk(*WRITES, "Done.", asks(("9", "erase", {"path": "x"})), approve=("write", "erase"))
    talk = desk.session
    waiting = await talk.run("go")

    ended = await talk.resume({"decisions": [approve(always=True)]}, decided_by="ana")
    other = await talk.run("more")

    assert (waiting.waiting, ended.answer, desk.ran, other.waiting, await desk.deciders()) == (
        "approval",
        "Done.",
        ["wrote 1", "wrote 2", "wrote 3"],
        "approval",
        ["ana", "always (ana)", "always (ana)"],
    )


async def test_each_decision_of_one_request_has_its_own_decider() -> None:
    wave = asks(*((str(number), tool, {"path": f"{number}"}) for number, tool in enumerate(["write", "erase"], 2)))
    desk = Desk(WRITES[0], wave, "Done.", approve=("write", "erase"))
    talk = Session(desk.graph, "s1", on_approval=lambda call: True)
    await Session(desk.graph, "s1").run("go")

    result = await talk.resume(approve(always=True))

    assert (result.answer, await desk.deciders()) == ("Done.", ["user", "always (user)", "on_approval"])


async def test_a_callback_that_returns_no_decision_is_named_and_the_session_waits() -> None:
    desk = Desk(WRITES[0])

    with pytest.raises(InputError, match=r"on_approval returned 'yes'; return True, False, or a decision"):
        await desk.session.run("go", on_approval=lambda call: "yes")

    assert ([each.value["call_ids"] for each in await desk.session.interrupts()], desk.ran) == ([["1"]], [])


@pytest.mark.parametrize(
    "start", [lambda talk: talk.run("go", on_approval=True), lambda talk: talk.resume(on_approval=1)]
)
async def test_a_callback_that_cannot_be_called_is_refused_before_a_run(start: Any) -> None:
    desk = Desk(WRITES[0])

    with pytest.raises(
        ConfigError, match=r"on_approval=(True|1): give a function of the call, e\.g\. on_approval=lambda"
    ):
        await start(desk.session)
    with pytest.raises(ConfigError, match="on_approval='yes': give a function"):
        Session(desk.graph, "s2", on_approval=cast("Any", "yes"))

    assert (await desk.session.status(), desk.ran) == ("CREATED", [])


def test_a_script_runs_resumes_and_streams_without_asyncio() -> None:
    desk = Desk(WRITES[0], "Done.", "Hello.", "Never.", "Hello again.")

    waiting = desk.session.run_sync("go")
    ended = desk.session.resume_sync({"decisions": [approve()]})
    parts = list(desk.session.stream_sync("hi"))
    for _ in desk.session.stream_sync("left"):
        break

    assert (waiting.waiting, ended.answer, parts[-1].type, desk.session.run_sync("x").status) == (
        "approval",
        "Done.",
        "done",
        "COMPLETED",
    )


async def test_blocking_methods_in_a_running_loop_name_the_asynchronous_ones() -> None:
    desk = Desk("Hello.")
    refusals = []
    for name in ("run", "resume", "stream"):
        with pytest.raises(SyncInLoopError) as caught:
            getattr(desk.session, f"{name}_sync")("go")
        refusals.append(f"'await session.{name}(...)'" in str(caught.value))

    assert (refusals, await asyncio.to_thread(lambda: desk.session.run_sync("go").answer)) == ([True] * 3, "Hello.")
