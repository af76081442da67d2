"""Budgets of an input: time, tokens and cost, the reserve for the answer, and the share of delegates."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.tools import tool
from langgraph.types import interrupt
from pydantic import BaseModel

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, Session, SessionStatus, create_graph_agent
from graph_agent.base.settings.config import Price
from graph_agent.base.usage import (
    BudgetUsage,
    RemainingBudget,
    budget_for_delegates,
    budget_met,
    cost_of,
    exhausted,
    price_of,
)
from graph_agent.delegation import Delegation, DelegationResult
from graph_agent.errors import ConfigError
from tests.support.agents import asks, dialogue, echo
from tests.support.budgets import PRICES, Clock, call_with_usage, reply_with_usage
from tests.support.gates import Gate, GatedModel, gated_tool, until
from tests.support.openai_stub import OpenAIStub, Reply
from tests.support.sessions import new_session, stored_messages


async def ended(talk: Session, **context: Any) -> Any:
    """One input's end: status, reason, answer, ids of results, ids of what is pending."""
    result = await talk.run("go", context=context)
    return result.status, result.stop_reason, result.answer, list(result.results), [c["id"] for c in result.pending]


async def test_a_deadline_in_a_plan_leaves_time_for_the_answer(clock: Clock) -> None:
    gate = Gate()
    model = clock.after(GatedModel(responses=[call_with_usage(1), "Best I can say."], before={2: gate}), 1, 899)
    run = asyncio.create_task(ended(new_session(model, echo), deadline_s=1000))
    await gate.reached()
    await until(lambda: gate.cancelled)
    gate.open()

    answer = "Reached the deadline (1000.0 s)\n\nBest I can say."
    assert await run == (SessionStatus.ROUND_LIMIT, "deadline", answer, ["1"], [])


async def test_a_deadline_in_a_wave_ends_its_calls(clock: Clock) -> None:
    gate = Gate()
    tools = gated_tool(gate), gated_tool(Gate(), "look", effect="read"), echo
    wave = asks(("1", "work", {}), ("2", "look", {}), ("3", "echo", {"text": "x"}))
    model = clock.after(ScriptedChatModel([wave, "No more actions.", "Done."]), 1, 898)

    result = await new_session(model, *tools).run("go", context={"deadline_s": 1000})

    because = "the time for this input ran out"
    assert (gate.cancelled, result.results) == (
        True,
        {
            "1": {
                "error": f"Stopped before it had finished: {because}. It is not known whether it took effect; "
                "check before repeating it."
            },
            "2": {"error": f"Stopped before it had finished: {because}. It only reads, so nothing was changed."},
            "3": "x",
        },
    )


async def test_a_deadline_that_passed_in_a_wave_leads_to_the_answer(clock: Clock) -> None:
    @tool
    async def slow() -> str:
        """Take the time that is left for work."""
        clock.forward(950)
        return "late"

    talk = new_session(ScriptedChatModel([asks(("1", "slow", {})), "Best I can say."]), slow)

    answer = "Reached the deadline (1000.0 s)\n\nBest I can say."
    assert await ended(talk, deadline_s=1000) == (SessionStatus.ROUND_LIMIT, "deadline", answer, ["1"], [])


async def test_a_deadline_in_the_answer_keeps_the_streamed_text(clock: Clock) -> None:
    gate = Gate()
    model = clock.after(GatedModel(responses=["No more actions.", "Half an answer."], within={2: gate}), 1, 997)
    talk = new_session(model, echo)

    texts = [part.text async for part in talk.stream("go", context={"deadline_s": 1000}) if part.type == "token"]

    result = await talk.driver.result()
    assert (texts, gate.cancelled, result.answer, result.status, result.stop_reason) == (
        ["Half", "\n\nReached the deadline (1000.0 s)"],
        True,
        "Half\n\nReached the deadline (1000.0 s)",
        SessionStatus.ROUND_LIMIT,
        "deadline",
    )


async def test_a_deadline_that_has_passed_leaves_no_time_for_an_answer(clock: Clock) -> None:
    model = clock.after(ScriptedChatModel([call_with_usage(1)]), 1, 1001)

    ended_ = await ended(new_session(model, echo), deadline_s=1000)

    assert (ended_[1:3], len(model.requests)) == (
        ("deadline", "Reached the deadline (1000.0 s)\n\nNot begun: echo."),
        1,
    )


async def test_a_token_budget_stops_before_the_plan_that_would_pass_it() -> None:
    # A plan takes 100, and the answer will take no less: 300 have room for one plan after the first, not for two.
    model = ScriptedChatModel([call_with_usage(1), call_with_usage(2), reply_with_usage("Best I can say.", 90, 10)])
    talk = new_session(model, echo)

    assert await ended(talk, max_tokens_total=350) == (
        SessionStatus.ROUND_LIMIT,
        "token_limit",
        "Reached the token budget (350 tokens)\n\nBest I can say.",
        ["1", "2"],
        [],
    )


async def test_a_reserve_is_kept_for_the_answer() -> None:
    model = ScriptedChatModel(
        [call_with_usage(1), call_with_usage(2), call_with_usage(3), reply_with_usage("Best I can say.", 90, 10)]
    )
    roomy = await ended(new_session(model, echo), max_tokens_total=499, answer_reserve=0.0)
    model = ScriptedChatModel([call_with_usage(1), call_with_usage(2), reply_with_usage("Best I can say.", 90, 10)])
    kept = await ended(new_session(model, echo), max_tokens_total=499, answer_reserve=0.5)

    assert (roomy[3], kept[3]) == (["1", "2", "3"], ["1", "2"])


async def test_calls_that_waited_are_pending_when_the_budget_ends() -> None:
    plan = (
        '{"status": "done", "action": "a", "tools": [{"id": "a", "tool": "echo", "args": {"text": "x"}},'
        ' {"id": "b", "tool": "echo", "args": {"text": "${a}"}, "needs": ["a"]}]}'
    )
    talk = new_session(ScriptedChatModel([reply_with_usage(plan, 990, 10), "Best I can say."]), echo)

    result = await talk.run("go", context={"tool_calling": "wave", "max_tokens_total": 1500})

    assert (result.stop_reason, result.results, result.pending) == (
        "token_limit",
        {"a": "x", "b": {"error": "Not run: the limit was reached before its turn came."}},
        [{"id": "b", "plan_id": "b", "name": "echo", "needs": ["a"]}],
    )


async def test_a_budget_that_is_used_up_leaves_no_model_call_for_the_answer() -> None:
    model = ScriptedChatModel([call_with_usage(1, 400)])

    ended_ = await ended(new_session(model, echo), max_tokens_total=350)

    assert (ended_, len(model.requests)) == (
        (
            SessionStatus.ROUND_LIMIT,
            "token_limit",
            "Reached the token budget (350 tokens)\n\nDone: echo.",
            ["1"],
            [],
        ),
        1,
    )


async def test_repeated_steering_stays_within_the_budget() -> None:
    class Steered(ScriptedChatModel):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            if len(self.requests) < 8:
                await talk.steer("And this.")
            return await super()._agenerate(*args, **kwargs)

    model = Steered(
        responses=[*[reply_with_usage("No more actions.", 90, 10)] * 3, reply_with_usage("Best I can say.", 90, 10)]
    )
    talk = new_session(model, echo)

    assert (await ended(talk, max_tokens_total=450, max_steps=50), len(model.requests)) == (
        (SessionStatus.ROUND_LIMIT, "token_limit", "Reached the token budget (450 tokens)\n\nBest I can say.", [], []),
        4,
    )


async def test_the_repairs_of_an_answer_keep_to_the_budget() -> None:
    class City(BaseModel):
        people: int

    model = ScriptedChatModel(
        [
            call_with_usage(1),
            reply_with_usage("No more actions.", 90, 10),
            *[reply_with_usage("No object.", 90, 10)] * 3,
        ]
    )
    talk = new_session(model, echo, response_format=City)

    assert (await ended(talk, max_tokens_total=400, answer_reserve=0), len(model.requests)) == (
        (SessionStatus.ROUND_LIMIT, "token_limit", "Reached the token budget (400 tokens)\n\nDone: echo.", ["1"], []),
        4,
    )


async def test_an_empty_answer_is_not_requested_again_without_budget() -> None:
    model = ScriptedChatModel([reply_with_usage("No more actions.", 90, 10), call_with_usage(1), "In words."])
    talk = new_session(model, echo)

    assert (await ended(talk, max_tokens_total=200, answer_reserve=0), len(model.requests)) == (
        (SessionStatus.ROUND_LIMIT, "token_limit", "Reached the token budget (200 tokens)", [], []),
        2,
    )


async def test_a_session_goes_on_with_a_larger_budget() -> None:
    model = ScriptedChatModel([call_with_usage(1, 400), "No more actions.", "All of it."])
    talk = new_session(model, echo)
    await talk.run("go", context={"max_tokens_total": 350})

    result = await talk.run("go on", context={"max_tokens_total": 100_000})

    assert (result.status, dialogue(await stored_messages(talk))) == (
        SessionStatus.COMPLETED,
        [
            ("human", "go"),
            ("ai", ""),
            ("tool", "1"),
            ("ai", "Reached the token budget (350 tokens)\n\nDone: echo."),
            ("human", "go on"),
            ("ai", "All of it."),
        ],
    )


async def test_each_input_has_the_whole_budget() -> None:
    model = ScriptedChatModel(
        [
            call_with_usage(1),
            call_with_usage(2),
            reply_with_usage("One.", 90, 10),
            call_with_usage(3),
            call_with_usage(4),
            reply_with_usage("Two.", 90, 10),
        ]
    )
    talk = new_session(model, echo, config=LoopConfig(max_tokens_total=350))

    assert [(await ended(talk))[1:4], (await ended(talk))[1:4]] == [
        ("token_limit", "Reached the token budget (350 tokens)\n\nOne.", ["1", "2"]),
        ("token_limit", "Reached the token budget (350 tokens)\n\nTwo.", ["3", "4"]),
    ]


async def test_cost_is_counted_and_limited() -> None:
    name = {"model_name": "gpt-4o-mini-2024-07-18"}
    first = reply_with_usage(("1", "echo", {"text": "x"}), 1_000_000, 100_000, **name)
    model = ScriptedChatModel([first, reply_with_usage("Best I can say.", 1_000_000, 0, **name)])
    talk = new_session(model, echo, config=LoopConfig(prices=PRICES, max_cost=0.4))

    result = await talk.run("go")

    assert (result.stop_reason, result.answer, round(result.cost or 0, 9), result.usage["total_tokens"]) == (
        "cost_limit",
        "Reached the cost budget (0.4)\n\nBest I can say.",
        0.36,
        2_100_000,
    )


async def test_no_price_means_no_cost() -> None:
    result = await new_session(ScriptedChatModel(["One."])).run("go")

    assert result.cost is None


def _reply(model: str, input_: int, output: int, cached: int = 0) -> AIMessage:
    details: Any = {"input_token_details": {"cache_read": cached}} if cached else {}
    usage: Any = {"input_tokens": input_, "output_tokens": output, "total_tokens": input_ + output, **details}
    return AIMessage("x", usage_metadata=usage, response_metadata={"model_name": model})


@pytest.mark.parametrize(
    ("reply", "prices", "cost"),
    [
        (_reply("m", 1_000_000, 500_000), {"m": Price(input=2, output=4)}, 4.0),
        (_reply("m", 1_000_000, 0, 400_000), {"m": Price(input=2, output=4, cached_input=0.5)}, 1.4),
        (_reply("m", 1_000_000, 0, 400_000), {"m": Price(input=2, output=4)}, 2.0),
        (_reply("unknown", 1_000_000, 0), {"a": Price(input=1, output=1), "b": Price(input=3, output=1)}, 3.0),
        (_reply("m", 1_000_000, 0), {}, 0.0),
        (AIMessage("x"), {"m": Price(input=2, output=4)}, 0.0),
    ],
    ids=["plain", "cached", "cached without a price", "unknown is the dearest", "no prices", "no usage"],
)
def test_the_cost_of_a_reply(reply: AIMessage, prices: dict[str, Price], cost: float) -> None:
    assert cost_of(reply, prices) == pytest.approx(cost)


@pytest.mark.parametrize("name", ["gpt-4o-mini", "gpt-4o-mini-2024-07-18"])
def test_a_dated_model_has_the_price_of_the_longest_name_that_begins_it(name: str) -> None:
    prices = {key: Price(**price) for key, price in PRICES.items()}

    assert price_of(name, prices) == prices["gpt-4o-mini"]


def test_a_cost_limit_needs_prices() -> None:
    with pytest.raises(ConfigError, match="max_cost needs prices"):
        LoopConfig(max_cost=1)


class Silent(ScriptedChatModel):
    """A provider that reports no usage."""

    def _reply(self, *args: Any, **kwargs: Any) -> AIMessage:
        message = super()._reply(*args, **kwargs)
        message.usage_metadata = None
        return message


@pytest.mark.parametrize("mode", ["native", "text", "wave"])
async def test_a_token_budget_holds_without_reported_usage(mode: Any) -> None:
    first = (
        '{"status": "continue", "action": "a", "tools": [{"id": "1", "tool": "echo", "args": {"text": "x"}}]}'
        if mode == "wave"
        else asks(("1", "echo", {"text": "x"}))
        if mode == "native"
        else AIMessage(asks(("1", "echo", {"text": "x"})))
    )
    model = Silent(responses=[first, "Best I can say."])
    talk = new_session(model, echo)

    result = await talk.run("go " * 2000, context={"max_tokens_total": 5000, "tool_calling": mode})

    assert (result.stop_reason, result.results, result.usage["total_tokens"] > 3000, len(model.requests)) == (
        "token_limit",
        {"1": "x"},
        True,
        2,
    )


@pytest.mark.parametrize("budget", [{}, {"max_tokens_total": 100_000}], ids=["no budget", "budget"])
async def test_usage_is_estimated_only_where_a_budget_needs_it(budget: Any) -> None:
    talk = new_session(Silent(responses=[asks(("1", "echo", {"text": "x"})), "No more actions.", "Done."]), echo)

    result = await talk.run("go", context=budget)

    replies = [message for message in await stored_messages(talk) if message.type == "ai"]
    marks = [reply.response_metadata.get("graph_agent_usage_estimated", False) for reply in replies]
    assert (result.usage["total_tokens"] > 0, marks) == (bool(budget), [bool(budget)] * 2)


async def test_a_token_budget_holds_where_zeros_are_reported() -> None:
    zeros = UsageMetadata(input_tokens=0, output_tokens=0, total_tokens=0)
    first = AIMessage("", tool_calls=[{"id": "1", "name": "echo", "args": {"text": "x"}}], usage_metadata=zeros)
    model = ScriptedChatModel([first, AIMessage("Best I can say.", usage_metadata=zeros)])

    result = await new_session(model, echo).run("go " * 2000, context={"max_tokens_total": 5000})

    assert (result.stop_reason, result.usage["total_tokens"] > 3000) == ("token_limit", True)


async def test_a_cost_limit_holds_without_usage_from_a_server() -> None:
    with OpenAIStub(Reply(tool_calls=(("echo", {"text": "x"}),)), "Best I can say.") as stub:
        async with stub.chat_model(streaming=True, stream_usage=False) as model:
            talk = new_session(model, echo, config=LoopConfig(tool_calling="native"))  # type: ignore[arg-type]  # any chat model

            result = await talk.run(
                "go " * 4000, context={"max_cost": 0.007, "prices": {"stub": {"input": 1.0, "output": 1.0}}}
            )

    assert (result.stop_reason, result.results, result.cost is not None and 0.003 < result.cost < 0.02) == (
        "cost_limit",
        {"call_1": "x"},
        True,
    )


def delegating(inner: ScriptedChatModel, outer: list[Any], *tools: Any, **options: Any) -> Session:
    delegate = GraphDelegate("r", "R.", create_graph_agent(inner, tools=list(tools) or [echo]))
    return new_session(ScriptedChatModel(outer), delegates=[delegate], **options)


async def test_a_delegates_tokens_count_and_it_receives_the_remaining_budget() -> None:
    inner = ScriptedChatModel([call_with_usage(1), call_with_usage(2), reply_with_usage("Found.", 90, 10)])
    wave = reply_with_usage(("d", "delegate_to_r", {"task": "t"}), 90, 10)
    talk = delegating(inner, [wave, reply_with_usage("Best I can say.", 90, 10)])

    result = await talk.run("go", context={"max_tokens_total": 560})

    # 560, less 100 for the plan and 100 for the answer, leaves 360: two plans and an answer of 100 each.
    assert (result.results, result.stop_reason, result.usage["total_tokens"]) == (
        {"d": "Reached the token budget (360 tokens)\n\nFound."},
        "token_limit",
        500,
    )


async def test_delegates_of_one_wave_share_what_is_left() -> None:
    seen: list[Any] = []

    class Noting:
        name, description = "n", "Notes its budget."

        async def run(self, delegation: Delegation) -> DelegationResult:
            seen.append(delegation.budget)
            return DelegationResult("ok")

    wave = AIMessage(
        "",
        tool_calls=[{"id": str(n), "name": "delegate_to_n", "args": {"task": "t"}} for n in range(2)],
        usage_metadata={"input_tokens": 90, "output_tokens": 10, "total_tokens": 100},
    )
    talk = new_session(ScriptedChatModel([wave, "No more actions.", "Done."]), delegates=[Noting()])

    await talk.run("go", context={"max_tokens_total": 10_000, "answer_reserve": 0.1})

    assert seen == [RemainingBudget(None, (10_000 - 100 - 1000) // 2, None)] * 2


async def test_a_delegate_ends_before_the_deadline_of_the_run_it_is_part_of(clock: Clock) -> None:
    gate = Gate()

    @tool
    async def work() -> str:
        """Work until the time is up."""
        try:
            await gate.passing()
        finally:
            clock.forward(2)
        return "never"

    inner = ScriptedChatModel([asks(("1", "work", {})), "Found so far."])
    outer = clock.after(ScriptedChatModel([asks(("d", "delegate_to_r", {"task": "t"})), "No more.", "Done."]), 1, 880)
    graph = create_graph_agent(inner, tools=[work], config=LoopConfig(answer_reserve=0.9))
    talk = new_session(outer, delegates=[GraphDelegate("r", "R.", graph)])

    result = await talk.run("go", context={"deadline_s": 1000, "answer_reserve": 0.1})

    # 900 less 880 are left to it, and a tenth of that for its work.
    answer = "Reached the deadline (20.0 s)\n\nFound so far."
    assert (gate.cancelled, result.status, result.results) == (True, SessionStatus.COMPLETED, {"d": answer})


async def test_waiting_for_a_person_does_not_use_the_time(clock: Clock) -> None:
    @tool
    async def ask() -> str:
        """Ask a person, after some work."""
        clock.forward(400)
        return str(interrupt("May I?"))

    talk = new_session(ScriptedChatModel([asks(("1", "ask", {})), "No more actions.", "Done."]), ask)
    await talk.run("go", context={"deadline_s": 1000})
    clock.forward(100_000)

    result = await talk.resume("yes", context={"deadline_s": 1000})

    assert (result.status, result.answer) == (SessionStatus.COMPLETED, "Done.")


@pytest.mark.parametrize(
    ("spent", "met", "nothing_left"),
    [
        (BudgetUsage(), None, None),
        (BudgetUsage(tokens=800, last_tokens=100), None, None),
        (BudgetUsage(tokens=801, last_tokens=100), "token_limit", None),
        (BudgetUsage(tokens=1000), "token_limit", "token_limit"),
        (BudgetUsage(cost=0.9, last_cost=0.0), None, None),
        (BudgetUsage(cost=0.91), "cost_limit", None),
        (BudgetUsage(cost=1.0), "cost_limit", "cost_limit"),
        (BudgetUsage(seconds=8.99), None, None),
        (BudgetUsage(seconds=9.0), "deadline", None),
        (BudgetUsage(seconds=10.0, tokens=5000), "deadline", "deadline"),
    ],
)
def test_when_a_budget_is_met(spent: BudgetUsage, met: str | None, nothing_left: str | None) -> None:
    settings = LoopConfig(deadline_s=10, max_tokens_total=1000, max_cost=1, prices=PRICES)

    first, last = budget_met(spent, settings), exhausted(spent, settings)

    assert (first and first[0], last and last[0]) == (met, nothing_left)


def test_the_remaining_budget_is_never_negative() -> None:
    settings = LoopConfig(deadline_s=10, max_tokens_total=1000, max_cost=1, prices=PRICES)

    assert budget_for_delegates(BudgetUsage(seconds=99, tokens=9999, cost=99), settings) == RemainingBudget(0.0, 0, 0.0)
