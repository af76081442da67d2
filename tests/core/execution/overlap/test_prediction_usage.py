"""What predicted plans have used is in the usage, the budgets and the events, whatever becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import BaseTool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import PrivateAttr

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from tests.support.predicted_plans import DONE, FIRST, NEXT, Bench, Releasing, agent_of, plan

PRICES = {"scripted": {"input": 1e6, "output": 1e6}}
"""The cost is the number of tokens."""


def requests_in(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of model calls, and of early requests, in the events of a session."""
    return [
        *(call for event in events for call in event.get("model_calls", ())),
        *(event["early"]["request"] for event in events if "request" in event.get("early", {})),
    ]


def returning(tools: list[BaseTool]) -> list[BaseTool]:
    """The tools, whose results are the answer."""
    for each in tools:
        each.return_direct = True
    return tools


async def test_a_prediction_counts_if_the_results_of_the_wave_are_the_answer() -> None:
    bench = Bench(releases="")
    model = Releasing(responses=[FIRST, plan(("more", "look", {"text": "c"}))])
    bench.may_end = model._may_end
    settings = LoopConfig(predict=True, tool_calling="wave", tool_timeout_s=60, prices=PRICES)
    agent = create_graph_agent(model, returning(bench.tools()), config=settings, checkpointer=InMemorySaver())
    session = agent.session("s1")
    result = await session.run("Look it up.")
    events: Any = await session.events()
    first, second, *early = requests_in(events)
    tokens = [each["input_tokens"] + each["output_tokens"] for each in (first, second)]

    assert result.answer == "found a\n\nwaited for b"
    assert (result.usage["model_calls"], result.usage["total_tokens"]) == (2, sum(tokens))
    assert [(each["started"], each["dropped"], each["cost"]) for each in early] == [(1, 1, tokens[1])]


async def test_a_prediction_that_is_dropped_counts_as_a_turn_before_the_request_is_sent_again() -> None:
    bench = Bench()
    model = Releasing(responses=[FIRST, plan(status="wait")])
    bench.may_end = model._may_end
    session = agent_of(model, bench, max_turns=2, on_limit="message").session("s1")
    result = await session.run("Look it up.")

    assert (result.stop_reason, result.usage["model_calls"], len(model.requests)) == ("turn_limit", 2, 2)


async def test_the_tokens_of_a_dropped_prediction_count_before_the_request_is_sent_again() -> None:
    first, again = Releasing(responses=[FIRST, plan(status="wait"), NEXT, DONE]), []
    bench = Bench()
    bench.may_end = first._may_end
    whole = await agent_of(first, bench).session("s1").run("Look it up.")
    for tokens in (100 * whole.usage["total_tokens"], 3 * whole.usage["total_tokens"] // 4):
        model, bench = Releasing(responses=[FIRST, plan(status="wait"), NEXT, DONE]), Bench()
        bench.may_end = model._may_end
        settings: dict[str, Any] = {"max_tokens_total": tokens, "on_limit": "message", "answer_reserve": 0.01}
        result = await agent_of(model, bench, **settings).session("s1").run("Look it up.")
        again.append((result.stop_reason, len(model.requests)))

    assert again == [("completed", 4), ("token_limit", 2)]


class Broken(ScriptedChatModel):
    """Sends a part of a streamed reply, which only predictions ask for, sets `arrived`, and then sends nothing more."""

    _arrived: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)

    async def _astream(self, *given: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk(content='{"status": "continue", "tools": ['))
        self._arrived.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("way", ["abort", "deadline"])
async def test_what_is_known_of_a_prediction_counts_if_it_is_cut_off(way: str) -> None:
    bench = Bench()
    limit: dict[str, Any] = {"deadline_s": 3.0} if way == "deadline" else {}
    model = Broken(responses=[FIRST])
    session = agent_of(model, bench, prices=PRICES, on_limit="message", **limit).session("s1")
    run = asyncio.ensure_future(session.run("Look it up."))
    async with asyncio.timeout(60):
        await model._arrived.wait()
    # The reply promises to become the plan, so that the pass waits for it.
    bench.may_end.set()
    if way == "abort":
        await asyncio.sleep(0.1)
        await session.abort()
    result = await run
    events: Any = await session.events()
    _, second, *early = requests_in(events)
    tokens = second["input_tokens"] + second["output_tokens"]

    assert (result.stop_reason, result.usage["model_calls"], second["error"]) == (
        {"abort": "aborted", "deadline": "deadline"}[way],
        2,
        "cancelled",
    )
    assert second["input_tokens"] > 100
    assert [(each["started"], each["dropped"], each["cost"]) for each in early] == [(1, 1, tokens)]


async def test_the_cost_of_a_prediction_that_the_budget_has_cancelled_is_in_the_events(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "graph_agent.overlap")
    bench = Bench()
    model = Broken(responses=[FIRST, NEXT, DONE])
    budget = {"seconds": 0.2}
    agent = agent_of(model, bench, prices=PRICES, on_limit="message", speculation_budget=budget, max_turns=2)
    run = asyncio.ensure_future(agent.session("s1").run("Look it up."))
    async with asyncio.timeout(60):
        while not caplog.records:
            await asyncio.sleep(0.01)
    bench.may_end.set()
    result = await run
    events: Any = await agent.session("s1").events()
    _, second, *early = requests_in(events)

    assert (result.stop_reason, result.usage["model_calls"], second["error"]) == ("turn_limit", 2, "cancelled")
    assert sum(each.get("cost", 0.0) for each in early) == second["input_tokens"] + second["output_tokens"] > 100
