"""Interrupted waves: by a cancel, new input, an interrupt, and a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from graph_agent import LoopConfig, ScriptedChatModel, Session, SessionStatus, create_graph_agent
from graph_agent.persistence import open_saver
from tests.support.agents import echo, kinds, marked, thread
from tests.support.result_texts import NEVER_STARTED, UNKNOWN
from tests.support.wave_helpers import DONE, answers, of_type, plan, plan_requests, results_of, use, waves


class Gate:
    """A tool that a test can hold during a call."""

    def __init__(self, **marks: Any) -> None:
        self.entered, self.open = asyncio.Event(), asyncio.Event()
        self.starts: list[str] = []

        @tool
        async def slow(text: str) -> str:
            """Wait to be released."""
            self.starts.append(text)
            self.entered.set()
            await self.open.wait()
            return f"slow {text}"

        self.tool = marked(slow, **marks)

    async def cancel_inside(self, session: Session) -> None:
        """Run the session's input until a call is held, and cancel it there."""
        run = asyncio.create_task(session.run("go"))
        await self.entered.wait()
        # Siblings of the held call end in the same superstep; their results are stored when they do.
        while not await _settled(session):
            await asyncio.sleep(0)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


async def _settled(session: Session) -> bool:
    """Whether every call under way but the held one has its result stored."""
    state = await session.driver.state()
    return all(task.name != "tools" or task.result is not None for task in state.tasks[:-1])


def two_levels(second: str = "y") -> str:
    return plan(
        use("a", "echo", text="x"),
        use("s", "slow", text="s"),
        use("b", "echo", "a", text=second),
        use("c", "echo", text="${b} ${s}"),
    )


async def test_new_input_during_a_wave_settles_every_call_truthfully() -> None:
    gate = Gate()
    model = ScriptedChatModel([two_levels(), DONE, "Answer."])
    session = waves(model, tools=[echo, gate.tool])
    await gate.cancel_inside(session)
    stopped = await session.driver.result()

    result = await session.run("never mind")

    messages = (await session.graph.aget_state(thread())).values["messages"]
    texts = dict(answers(messages))
    assert (sorted(call["id"] for call in stopped.pending), texts, result.answer, result.pending) == (
        ["b", "c", "s"],
        {"a": ["x"], "s": [UNKNOWN], "b": [NEVER_STARTED], "c": [NEVER_STARTED]},
        "Answer.",
        [],
    )
    assert of_type(await session.events(), "tool_result", "id", "status") == [
        ("a", "success"),
        ("s", "unknown"),
        ("b", "skipped"),
        ("c", "skipped"),
    ]
    wave = {"a": "x", "s": {"error": UNKNOWN}, "b": {"error": NEVER_STARTED}, "c": {"error": NEVER_STARTED}}
    assert results_of(plan_requests(model)[1]) == [wave]


async def test_new_input_in_the_second_level_keeps_the_first() -> None:
    gate = Gate()
    wave = plan(use("a", "echo", text="x"), use("s", "slow", "a", text="s"), use("c", "echo", "s", text="z"))
    session = waves([wave, DONE, "Answer."], tools=[echo, gate.tool])
    await gate.cancel_inside(session)

    await session.run("never mind")

    messages = (await session.graph.aget_state(thread())).values["messages"]
    assert dict(answers(messages)) == {"a": ["x"], "s": [UNKNOWN], "c": [NEVER_STARTED]}


async def test_waiting_calls_do_not_run_after_new_input() -> None:
    gate = Gate()
    session = waves(
        [two_levels(), plan(use("n", "echo", text="new"), status="done"), "Answer."], tools=[echo, gate.tool]
    )
    await gate.cancel_inside(session)
    gate.open.set()

    result = await session.run("something else")

    assert (result.results, gate.starts) == ({"n": "new"}, ["s"])


async def test_a_cancelled_level_is_resumed_without_asking_the_model_again() -> None:
    gate = Gate(effect="read")
    model = ScriptedChatModel([two_levels(), DONE, "Answer."])
    session = waves(model, tools=[echo, gate.tool])
    await gate.cancel_inside(session)
    gate.open.set()

    result = await session.resume()

    assert (result.results, result.answer, len(plan_requests(model)), gate.starts) == (
        {"a": "x", "s": "slow s", "b": "y", "c": "y slow s"},
        "Answer.",
        2,
        ["s", "s"],
    )


async def test_a_wave_goes_on_between_its_levels_after_a_restart(tmp_path: Path) -> None:
    gate = Gate(effect="read")
    wave = plan(use("a", "echo", text="x"), use("s", "slow", text="${a}"), use("c", "echo", text="${s}!"))
    url = f"sqlite:///{tmp_path / 'waves.db'}"

    def session(script: list[str], saver: Any) -> Session:
        return waves(script, tools=[echo, gate.tool], checkpointer=saver)

    async with open_saver(url) as saver:
        await gate.cancel_inside(session([wave], saver))
    gate.open.set()

    async with open_saver(url) as saver:
        reopened = session([DONE, "Answer."], saver)
        waiting = await reopened.driver.result()
        result = await reopened.resume()
        events = await reopened.events()

    assert (waiting.status, waiting.results, waiting.pending, result.results, result.status) == (
        SessionStatus.RUNNING,
        {"a": "x"},
        [
            {"id": "s", "plan_id": "s", "name": "slow", "needs": ["a"]},
            {"id": "c", "plan_id": "c", "name": "echo", "needs": ["s"]},
        ],
        {"a": "x", "s": "slow x", "c": "slow x!"},
        SessionStatus.COMPLETED,
    )
    assert kinds(events) == [
        *["user_message", "status", "plan"],
        *["tool_call", "tool_result"] * 3,
        *["plan", "agent_response", "status"],
    ]


async def test_an_interrupt_holds_the_later_levels() -> None:
    @tool
    async def ask() -> str:
        """Ask a person."""
        answer: str = interrupt("May I?")
        return answer

    model = ScriptedChatModel(
        [plan(use("q", "ask"), use("a", "echo", text="x"), use("b", "echo", text="${q}"), status="done"), "Answer."]
    )
    config = LoopConfig(tool_calling="wave")
    session = Session(create_graph_agent(model, tools=[ask, echo], config=config, checkpointer=InMemorySaver()), "s1")
    waiting = await session.run("go")

    result = await session.resume("yes")

    assert ([i.value for i in waiting.interrupts], waiting.status, result.results) == (
        ["May I?"],
        SessionStatus.RUNNING,
        {"q": "yes", "a": "x", "b": "yes"},
    )
