"""A call approved by a person takes effect once, whatever happens to the resumed run."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from tests.support.agents import asks
from tests.support.fault_agent import ANSWER
from tests.support.fault_session import Watched
from tests.support.result_texts import UNKNOWN


@pytest.mark.parametrize("ledger", [False, True])
@pytest.mark.parametrize("again", ["answer", "resume", "input"])
@pytest.mark.parametrize("answer", ["yes", "by id"])
@pytest.mark.parametrize("stage", ["effect", "end"])
async def test_an_answered_call_takes_effect_once(stage: str, answer: str, again: str, ledger: bool) -> None:
    def reach(what: str) -> None:
        if what == f"{stage} of w1-ask" and run is not None:
            run.cancel()

    run: asyncio.Task[Any] | None = None
    watched = Watched(ledger=ledger, waves=[[("w1-ask", "ask", ())]], reach=reach)
    waits = await watched.session.run("go")
    resume_value: Any = "yes" if answer == "yes" else {waits.interrupts[0].id: "yes"}
    run = asyncio.create_task(watched.session.resume(resume_value))
    with contextlib.suppress(asyncio.CancelledError):
        await run
    stopped, run = run, None

    if again == "input":
        result = await watched.session.run("go on")
    else:
        result = await watched.session.resume(resume_value if again == "answer" else None)
    if result.interrupts:
        result = await watched.session.resume(resume_value)

    effects = [id_ for what, id_ in watched.log if what == "effect"]
    assert (stopped.cancelled(), effects, result.answer) == (True, ["w1-ask"], ANSWER)


async def test_a_call_that_asks_twice_goes_on_with_each_answer_once() -> None:
    effects: list[str] = []
    stop: asyncio.Task[Any] | None = None

    @tool
    async def ask_twice() -> str:
        """Ask for two things, and do something after each."""
        first = interrupt("first?")
        effects.append(f"saw {first}")
        second = interrupt("second?")
        effects.append(f"saw {second}")
        if stop is not None:
            stop.cancel()
        await asyncio.sleep(0)
        return f"{first} {second}"

    model = ScriptedChatModel([asks(("1", "ask_twice", {})), "No more actions.", "Done."])
    session = Session(create_graph_agent(model, tools=[ask_twice], checkpointer=InMemorySaver()), "s1")
    await session.run("go")
    await session.resume("a")
    stop = asyncio.create_task(session.resume("b"))
    with contextlib.suppress(asyncio.CancelledError):
        await stop

    result = await session.resume("b")

    assert (effects, result.results) == (["saw a", "saw a", "saw b"], {"1": {"error": UNKNOWN}})
