"""The times in events: of model calls, calls, queues and the waits for a person."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain_core.tools import tool
from langgraph.types import interrupt

from graph_agent import LoopConfig, ScriptedChatModel, Session
from graph_agent.base.settings.config import Price
from tests.support.agents import ECHO_SCRIPT, asks, echo
from tests.support.approvals import Desk
from tests.support.gates import Gate, GatedModel, gated_tool
from tests.support.sessions import new_session

TIMES = ("queued_s", "duration_s", "waited_s")


async def timed(session: Session) -> list[tuple[str, list[str]]]:
    """The events that have times, with the names of these; each time is at least 0."""
    found: list[tuple[str, list[str]]] = []
    for event in await session.events():
        times: dict[str, Any] = {name: event[name] for name in TIMES if name in event}  # type: ignore[literal-required]  # fields of some events
        assert all(seconds >= 0 for seconds in times.values())
        if times:
            found.append((event["type"], [*times]))
    return found


async def model_calls(session: Session) -> list[tuple[str, list[tuple[str, str]]]]:
    """The events that report model calls, with the purpose and the error of each."""
    return [
        (event["type"], [(call["purpose"], call.get("error", "")) for call in event["model_calls"]])
        for event in await session.events()
        if "model_calls" in event
    ]


async def test_each_result_has_its_duration_and_each_reply_its_model_call() -> None:
    session = new_session(ScriptedChatModel(ECHO_SCRIPT), echo)

    await session.run("go")

    assert (await timed(session), await model_calls(session)) == (
        [("user_message", ["queued_s"]), ("tool_result", ["queued_s", "duration_s"])],
        [("plan", [("plan", "")]), ("plan", [("plan", "")]), ("agent_response", [("answer", "")])],
    )


async def test_a_model_call_has_its_tokens_and_its_cost() -> None:
    prices = {"scripted": Price(input=1_000_000, output=0)}
    session = new_session(ScriptedChatModel(["Hello."]), echo, config=LoopConfig(prices=prices))

    await session.run("hi")

    [call] = next(event["model_calls"] for event in await session.events() if "model_calls" in event)
    assert (call["model"], call["cost"] == call["input_tokens"] > 0, call["output_tokens"] > 0) == (
        "scripted",
        True,
        True,
    )


async def test_a_call_that_waits_for_a_slot_is_queued_longer_than_the_call_before_it() -> None:
    gate = Gate()
    model = ScriptedChatModel([asks(("a", "work", {}), ("b", "work", {})), "Done."])
    session = new_session(model, gated_tool(gate), config=LoopConfig(max_parallel_calls=1))

    run = asyncio.create_task(session.run("go"))
    await gate.reached()
    await asyncio.sleep(0.05)  # the time that the second call waits
    gate.open()
    await run

    first, second = [event for event in await session.events() if event["type"] == "tool_result"]
    assert second["queued_s"] > first["queued_s"]


async def test_every_attempt_of_a_request_is_recorded_with_its_error() -> None:
    class Failing(ScriptedChatModel):
        failures: int = 1

        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            self.failures -= 1
            if self.failures >= 0:
                raise ConnectionError("no route")
            return await super()._agenerate(*args, **kwargs)

    session = new_session(Failing(responses=["Hello."]), echo, config=LoopConfig(model_retries=1))

    await session.run("hi")

    assert await model_calls(session) == [("plan", [("plan", "transient"), ("plan", "")])]


async def test_a_request_that_an_abort_cancels_is_reported_with_the_answer() -> None:
    gate = Gate()
    session = new_session(GatedModel(["Hello."], before={1: gate}), echo)

    run = asyncio.create_task(session.run("hi"))
    await gate.reached()
    await session.abort()
    await run

    assert await model_calls(session) == [("agent_response", [("plan", "cancelled")])]


async def test_a_failed_request_is_reported_with_the_error() -> None:
    class Failing(ScriptedChatModel):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            raise ValueError("no such model")

    session = new_session(Failing(responses=["Hello."]), echo)

    await session.run("hi")

    assert await model_calls(session) == [("error", [("plan", "unknown_model")])]


async def test_a_decision_has_the_time_that_the_person_took() -> None:
    desk = Desk(asks(("1", "write", {"path": "a"})), "Done.")
    await desk.session.run("go")

    await desk.session.resume({"decisions": [{"type": "approve"}]})

    assert await timed(desk.session) == [
        ("user_message", ["queued_s"]),
        ("approval_decision", ["waited_s"]),
        ("tool_result", ["queued_s", "duration_s"]),
    ]


async def test_a_call_that_asks_a_person_has_the_time_of_its_wait() -> None:
    @tool
    def ask() -> str:
        """Ask."""
        return str(interrupt("Sure?"))

    session = new_session(ScriptedChatModel([asks(("1", "ask", {})), "Done."]), ask)
    await session.run("go")

    await session.resume("yes")

    assert (await timed(session))[-1] == ("tool_result", ["queued_s", "duration_s", "waited_s"])


async def test_a_follow_up_is_queued_since_it_was_sent() -> None:
    gate = Gate()
    session = new_session(GatedModel(["One.", "Two."], before={1: gate}), echo)

    run = asyncio.create_task(session.run("one"))
    await gate.reached()
    await session.follow_up("two")
    gate.open()
    await run
    await session.run_follow_ups()

    first, second = [event["queued_s"] for event in await session.events() if event["type"] == "user_message"]
    assert first >= 0
    assert second > 0


async def test_the_duration_of_a_call_in_a_result_excludes_its_waits() -> None:
    session = new_session(ScriptedChatModel(ECHO_SCRIPT), echo)

    result = await session.run("go")

    recorded = [event["duration_s"] for event in await session.events() if event["type"] == "tool_result"]
    assert [call.duration_s for call in result.calls] == recorded
