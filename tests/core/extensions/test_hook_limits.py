"""Budgets when hooks request a rerun."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from graph_agent import LoopConfig, LoopHook, LoopPlan, ScriptedChatModel, Session
from graph_agent.hooks import HookRequest, HookResponse
from graph_agent.session.results import Token
from tests.support.agents import echo, kinds
from tests.support.budgets import PRICES, Clock, call_with_usage, plan_with_usage, reply_with_usage
from tests.support.gates import Gate, GatedModel
from tests.support.sessions import new_session


class Never(LoopHook):
    """Requests a rerun of every planning reply."""

    def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        return request.phase == "plan", None

    def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
        return LoopPlan(run_agentic_loop=True)


async def ended(talk: Session, **context: Any) -> Any:
    """One input's end: status, reason, answer, ids of results, model calls."""
    result = await talk.run("go", context=context)
    return result.status, result.stop_reason, result.answer, list(result.results), result.usage["model_calls"]


ANSWER = reply_with_usage("Best I can say.", 90, 10)


@pytest.mark.parametrize(
    ("mode", "script"),
    [
        ("native", [call_with_usage(1), call_with_usage(2), ANSWER]),
        ("wave", [plan_with_usage(1), plan_with_usage(2), ANSWER]),
    ],
)
async def test_a_token_budget_prevents_a_rerun(mode: Any, script: list[Any]) -> None:
    model = ScriptedChatModel(script)
    talk = new_session(model, echo, hooks=[Never()])

    # Two plans leave room for the answer, and none for a third.
    end = await ended(talk, max_tokens_total=350, tool_calling=mode)

    model.assert_spent()
    answer = "Reached the token budget (350 tokens)\n\nBest I can say."
    assert (end, kinds(await talk.events())) == (
        ("ROUND_LIMIT", "token_limit", answer, [], 3),
        ["user_message", "status", "hook", "warning", "limit", "agent_response", "status"],
    )


async def test_a_cost_budget_prevents_a_rerun() -> None:
    name = {"model_name": "gpt-4o-mini"}
    first = reply_with_usage(("1", "echo", {"text": "x"}), 1_000_000, 100_000, **name)
    model = ScriptedChatModel([first, reply_with_usage("Best I can say.", 1_000_000, 0, **name)])
    talk = new_session(model, echo, hooks=[Never()], config=LoopConfig(prices=PRICES, max_cost=0.4))

    end = await ended(talk)

    model.assert_spent()
    answer = "Reached the cost budget (0.4)\n\nBest I can say."
    assert end == ("ROUND_LIMIT", "cost_limit", answer, [], 2)


async def test_a_deadline_prevents_a_rerun(clock: Clock) -> None:
    model = ScriptedChatModel([call_with_usage(1), "Best I can say."])

    class SetsForward(Never):
        def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
            clock.forward(950)
            return LoopPlan(run_agentic_loop=True)

    end = await ended(new_session(model, echo, hooks=[SetsForward()]), deadline_s=1000)

    model.assert_spent()
    answer = "Reached the deadline (1000.0 s)\n\nBest I can say."
    assert end == ("ROUND_LIMIT", "deadline", answer, [], 2)


@pytest.mark.parametrize("streaming", [False, True])
async def test_every_rerun_is_a_turn_of_the_session(streaming: bool) -> None:
    model = ScriptedChatModel([call_with_usage(1), call_with_usage(2), "Best I can say."])
    talk = new_session(model, echo, hooks=[Never()], config=LoopConfig(max_turns=2))

    if streaming:
        answer = "".join([part.text async for part in talk.stream("go") if isinstance(part, Token)])
    else:
        answer = (await talk.run("go")).answer

    model.assert_spent()
    assert (answer, await talk.status()) == ("Reached maximum model turns (2)\n\nBest I can say.", "TURN_LIMIT")


async def test_a_rerun_prevented_by_a_limit_is_a_warning() -> None:
    talk = new_session(ScriptedChatModel([call_with_usage(1), "Best I can say."]), echo, hooks=[Never()])

    await talk.run("go", context={"max_turns": 1})

    assert [event["message"] for event in await talk.events() if event["type"] == "warning"] == [
        "The hook Never wants the model asked again, but a limit forbids it; its last reply is not followed."
    ]


async def test_an_answer_is_withheld_when_a_limit_prevents_its_rerun() -> None:
    model = ScriptedChatModel([reply_with_usage("A first try.", 90, 10), reply_with_usage("Best I can say.", 90, 10)])
    talk = new_session(model, echo, hooks=[Never()], config=LoopConfig(finalize="direct"))

    end = await ended(talk, max_tokens_total=250)

    model.assert_spent()
    answer = "Reached the token budget (250 tokens)\n\nBest I can say."
    assert end == ("ROUND_LIMIT", "token_limit", answer, [], 2)


class Once(LoopHook):
    """Requests one rerun of a reply with calls."""

    def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        return request.depth == 0 and bool(response.calls), None

    def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
        return LoopPlan(run_agentic_loop=True)


async def test_a_run_killed_in_a_rerun_plans_again() -> None:
    gate = Gate()
    replies = [call_with_usage(9), call_with_usage(9), call_with_usage(1), reply_with_usage("No more actions.", 90, 10)]
    talk = new_session(GatedModel(responses=[*replies, ANSWER], before={2: gate}), echo, hooks=[Once()])
    running = asyncio.create_task(talk.run("go"))
    await gate.reached()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    gate.open()

    result = await talk.resume()

    warnings = [event["message"] for event in await talk.events() if event["type"] == "warning"]
    assert (result.answer, list(result.results), result.usage["model_calls"], warnings) == (
        "Best I can say.",
        ["1"],
        4,
        [],
    )
