"""Plans that are asked for while the slowest call of the wave before still runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.testing import replay
from tests.support.predicted_plans import DONE, FIRST, NEXT, Bench, Releasing, agent_of, plan


async def test_the_next_plan_is_made_while_the_slowest_call_runs_and_only_its_reading_calls_begin() -> None:
    bench = Bench()
    writing = plan(("more", "look", {"text": "c"}), ("write", "save", {"text": "d"}))
    model = ScriptedChatModel([FIRST, writing, DONE, DONE])
    session = agent_of(model, bench).session("s1")
    result = await session.run("Look it up.")
    events = await session.events()
    early = {source: counts for event in events for source, counts in event.get("early", {}).items()}

    assert (result.answer, bench.order) == ("Done.", ["look a", "look c", "wait_for b", "save d"])
    assert sorted(map(str, result.results.values())) == ["found a", "found c", "saved", "waited for b"]
    assert "PENDING" in model.requests[1].messages[-1].text
    assert (early["request"]["used"], early["predicted"]["used"]) == (1, 1)


@pytest.mark.parametrize(
    "predicted",
    [
        plan(status="wait"),
        plan(status="done", answer="I guess."),
        plan(("last", "look", {"text": "z"}), status="done"),
        plan(("more", "look", {"text": "${slow}"})),
        json.dumps(
            {"status": "continue", "tools": [{"id": "m", "tool": "look", "args": {"text": "z"}, "needs": ["slow"]}]}
        ),
        "no plan {",
    ],
    ids=["wait", "answer", "last", "reference", "needs", "invalid"],
)
async def test_the_request_is_sent_again_if_the_prediction_cannot_be_the_plan(predicted: str) -> None:
    bench = Bench()
    model = Releasing(responses=[FIRST, predicted, NEXT, DONE])
    bench.may_end = model._may_end
    session = agent_of(model, bench).session("s1")
    result = await session.run("Look it up.")
    events = await session.events()
    dropped = [event["early"]["request"].get("dropped") for event in events if "request" in event.get("early", {})]

    assert (result.answer, bench.order) == ("Done.", ["look a", "wait_for b", "look c", "save d found c"])
    assert (len(model.requests), result.usage["model_calls"], 1 in dropped) == (4, 4, True)
    assert "PENDING" not in str(model.requests[2].messages)


async def test_no_call_of_a_predicted_plan_begins_while_a_writing_call_runs() -> None:
    bench = Bench()
    model = Releasing(responses=[FIRST.replace("wait_for", "book"), NEXT, DONE])
    bench.may_end = model._may_end

    @tool
    async def book(text: str) -> str:
        """Book."""
        await bench.may_end.wait()
        bench.order.append(f"book {text}")
        return "booked"

    settings = LoopConfig(predict=True, tool_calling="wave", tool_timeout_s=60)
    agent = create_graph_agent(model, [*bench.tools(), book], config=settings, checkpointer=InMemorySaver())
    result = await agent.session("s1").run("Look it up.")

    assert (result.answer, bench.order) == ("Done.", ["look a", "book b", "look c", "save d found c"])
    assert len(model.requests) == 3


@pytest.mark.parametrize(
    "begin", ["", '{"tools": [{"id": "m", "tool": "look", "args": {"text": "z", "status": "continue"}}, ']
)
async def test_a_prediction_without_a_status_is_cancelled_if_the_other_request_is_answered_first(begin: str) -> None:
    class Stuck(ScriptedChatModel):
        async def _astream(self, *given: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
            if not bench.may_end.is_set():
                if begin:
                    yield ChatGenerationChunk(message=AIMessageChunk(content=begin))
                bench.may_end.set()
                await asyncio.Event().wait()
            async for chunk in super()._astream(*given, **kwargs):
                yield chunk

    bench = Bench(releases="")
    session = agent_of(Stuck(responses=[FIRST, NEXT, DONE]), bench).session("s1")
    result = await session.run("Look it up.")

    assert (result.answer, bench.order) == ("Done.", ["look a", "wait_for b", "look c", "save d found c"])


async def test_no_prediction_begins_beyond_the_budget_or_the_limit_of_plans() -> None:
    asked = []
    for config in ({"speculation_budget": {"calls": 0}}, {"max_steps": 1, "on_limit": "message"}):
        bench = Bench()
        bench.may_end.set()
        model = ScriptedChatModel([FIRST, NEXT, DONE])
        await agent_of(model, bench, **config).session("s1").run("Look it up.")
        asked.append("PENDING" in str([each.messages for each in model.requests]))

    assert asked == [False, False]


async def test_a_message_of_the_user_during_the_wave_drops_the_prediction() -> None:
    bench = Bench(releases="")
    model = ScriptedChatModel([FIRST, NEXT, plan(("other", "look", {"text": "e"})), DONE])
    session = agent_of(model, bench).session("s1")
    run = asyncio.ensure_future(session.run("Look it up."))
    async with asyncio.timeout(60):
        while "look c" not in bench.order:
            await asyncio.sleep(0.01)
    await session.steer("Look up e.")
    bench.may_end.set()
    result = await run

    assert result.answer == "Done."
    assert sorted(map(str, result.results.values())) == ["found a", "found e", "waited for b"]
    assert "save d found c" not in bench.order


async def test_a_run_that_ends_with_a_prediction_stores_nothing_of_it_and_goes_on_without_repeats() -> None:
    bench, saver = Bench(releases=""), InMemorySaver()
    session = agent_of(ScriptedChatModel([FIRST, NEXT]), bench, saver).session("s1")
    run = asyncio.ensure_future(session.run("Look it up."))
    async with asyncio.timeout(60):
        while "look c" not in bench.order:
            await asyncio.sleep(0.01)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    stored = [event for event in await session.events() if event.get("arguments") == {"text": "c"}]
    other = Bench()
    other.may_end.set()
    # Another object, as in another process.
    result = await agent_of(ScriptedChatModel([NEXT, DONE]), other, saver).session("s1").resume()

    assert stored == []
    assert (result.answer, other.order) == ("Done.", ["wait_for b", "look c", "save d found c"])


@pytest.mark.parametrize("predicted", [None, plan(status="wait")], ids=["taken", "dropped"])
async def test_a_replay_plans_without_predictions_as_the_recorded_session_did(predicted: str | None) -> None:
    bench = Bench()
    model = Releasing(responses=[FIRST, *([predicted] if predicted else []), NEXT, DONE])
    bench.may_end = model._may_end
    agent = agent_of(model, bench)
    session = agent.session("s1")
    await session.run("Look it up.")

    assert list((await replay(session, agent)).differences) == []
