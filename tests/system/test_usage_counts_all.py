"""Usage includes every model call, also cut-off ones and those that middleware makes or discards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from langchain.agents.middleware import PIIMiddleware, wrap_model_call
from langchain.agents.middleware.types import ModelRequest
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk

from graph_agent import LoopConfig, LoopHook, LoopPlan, RunResult, ScriptedChatModel, Session
from graph_agent.base.usage import ESTIMATED, cut_off_reply
from graph_agent.hooks import HookRequest, HookResponse
from graph_agent.session.results import Token
from tests.support.agents import echo
from tests.support.budgets import Clock, call_with_usage, plan_with_usage, reply_with_usage
from tests.support.gates import Gate, GatedModel, LateGate, until
from tests.support.sessions import new_session, stored_messages

LONG = "go " * 400
"""A request of some 300 tokens and more."""
NOTHING = reply_with_usage("No more actions.", 90, 10)


async def aborted_at(gate: Gate, talk: Session, *, streaming: bool = False) -> RunResult:
    """Abort a session while its model waits at the gate."""

    async def stream() -> RunResult:
        return [part async for part in talk.stream(LONG)][-1].result  # type: ignore[union-attr]  # the last part is Done

    running = asyncio.create_task(stream() if streaming else talk.run(LONG))
    await gate.reached()
    await talk.abort()
    return await running


def counted(result: RunResult) -> tuple[bool, bool, int]:
    """Whether the request and the reply of the cut-off call were counted, and the number of model calls."""
    usage = result.usage
    return usage["input_tokens"] > 300, usage["output_tokens"] > 0, usage["model_calls"]


@pytest.mark.parametrize("mode", ["native", "text", "wave"])
async def test_usage_of_a_cut_off_plan_is_counted(mode: Any) -> None:
    gate = Gate()
    talk = new_session(GatedModel(["never"], before={1: gate}), echo, config=LoopConfig(tool_calling=mode))

    result = await aborted_at(gate, talk)

    assert (result.status, counted(result)) == ("ABORTED", (True, False, 1))


async def test_usage_of_a_cut_off_answer_is_counted() -> None:
    gate = Gate()
    talk = new_session(GatedModel([NOTHING, "One two three."], within={2: gate}), echo)

    result = await aborted_at(gate, talk, streaming=True)

    [answer] = [m for m in await stored_messages(talk) if m.type == "ai"]
    assert (
        result.status,
        counted(result),
        answer.usage_metadata["total_tokens"] == result.usage["total_tokens"] - 100,
        answer.response_metadata[ESTIMATED],
    ) == ("ABORTED", (True, True, 2), True, True)


async def test_usage_of_an_answer_cut_off_before_its_first_token_is_counted() -> None:
    gate = Gate()
    talk = new_session(GatedModel([NOTHING, "Never."], before={2: gate}), echo)

    result = await aborted_at(gate, talk)

    [answer] = [m for m in await stored_messages(talk) if m.type == "ai"]
    assert (counted(result)[0], result.usage["model_calls"], answer.usage_metadata) == (True, 2, None)


class TellsAtOnce(GatedModel):
    """Reports a request's usage with the first token of its reply, as some providers do."""

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        figures: Any = {"input_tokens": 5000, "output_tokens": 1, "total_tokens": 5001}
        yield ChatGenerationChunk(message=AIMessageChunk(content="", usage_metadata=figures))
        async for chunk in super()._astream(*args, **kwargs):
            yield chunk


async def test_reported_usage_is_preferred_to_an_estimate() -> None:
    gate = Gate()
    talk = new_session(TellsAtOnce(responses=["One two three."], within={1: gate}))

    result = await aborted_at(gate, talk, streaming=True)

    assert (result.usage["input_tokens"], result.usage["output_tokens"] > 0) == (5000, True)


@pytest.mark.parametrize("streaming", [False, True])
async def test_usage_of_a_cut_off_answer_at_a_limit_is_counted(streaming: bool) -> None:
    gate = Gate()
    gates: Any = {"within": {2: gate}} if streaming else {"before": {2: gate}}
    talk = new_session(
        GatedModel([call_with_usage(1), "One two three."], **gates), echo, config=LoopConfig(max_steps=1)
    )

    result = await aborted_at(gate, talk, streaming=streaming)

    assert (result.status, counted(result)) == ("ABORTED", (True, True, 2))


class Again(LoopHook):
    """Requests one rerun."""

    def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        return request.depth == 0, None

    def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
        return LoopPlan(run_agentic_loop=True)


@pytest.mark.parametrize(("mode", "first"), [("native", call_with_usage(1)), ("wave", plan_with_usage(1))])
async def test_usage_of_a_cut_off_rerun_is_counted(mode: Any, first: AIMessage) -> None:
    gate = Gate()
    model = GatedModel([first, "never"], before={2: gate})
    talk = new_session(model, echo, hooks=[Again()], config=LoopConfig(tool_calling=mode))

    result = await aborted_at(gate, talk)

    assert (result.status, result.results, counted(result)) == ("ABORTED", {}, (True, True, 2))


async def test_a_reply_cut_off_by_the_deadline_is_counted(clock: Clock) -> None:
    gate = LateGate(lambda: clock.forward(5))
    model = clock.after(GatedModel(responses=[call_with_usage(1), "Best I can say."], before={2: gate}), 1, 897)
    config = LoopConfig(prices={"scripted": {"input": 1.0, "output": 1.0}})
    talk = new_session(model, echo, config=config)
    running = asyncio.create_task(talk.run(LONG, context={"deadline_s": 1000}))
    await gate.reached()
    await until(lambda: gate.cancelled)
    gate.open()

    result = await running

    assert (result.stop_reason, result.usage["model_calls"], (result.cost or 0) > 400e-6) == ("deadline", 3, True)


Handler = Callable[[ModelRequest[Any]], Awaitable[Any]]


@wrap_model_call
async def best_of_two(request: ModelRequest[Any], handler: Handler) -> Any:
    await handler(request)
    return await handler(request)


@wrap_model_call
async def first_of_two(request: ModelRequest[Any], handler: Handler) -> Any:
    first = await handler(request)
    await handler(request)
    return first


@pytest.mark.parametrize("middleware", [best_of_two, first_of_two])
@pytest.mark.parametrize("mode", ["native", "wave"])
async def test_usage_of_a_reply_discarded_by_middleware_is_counted(middleware: Any, mode: Any) -> None:
    nothing = NOTHING if mode == "native" else reply_with_usage('{"status": "done", "tools": []}', 90, 10)
    script = [nothing, nothing, reply_with_usage("Done.", 45, 5), reply_with_usage("Done.", 45, 5)]
    talk = new_session(ScriptedChatModel(script), echo, hooks=[middleware], config=LoopConfig(tool_calling=mode))

    result = await talk.run("go")

    assert (result.answer, result.usage["total_tokens"], result.usage["model_calls"]) == ("Done.", 300, 4)


async def test_a_reply_that_middleware_rewrites_counts_once() -> None:
    pii: Any = PIIMiddleware("email", apply_to_output=True)
    talk = new_session(ScriptedChatModel([NOTHING, reply_with_usage("To a@example.com.", 45, 5)]), echo, hooks=[pii])

    result = await talk.run("go")

    assert (result.answer, result.usage["total_tokens"], result.usage["model_calls"]) == (
        "To [REDACTED_EMAIL].",
        150,
        2,
    )


async def test_a_reply_that_middleware_forbids_counts_all_the_same() -> None:
    block: Any = PIIMiddleware("email", strategy="block", apply_to_output=True)
    talk = new_session(ScriptedChatModel([reply_with_usage("To a@example.com.", 45, 5)]), echo, hooks=[block])

    result = await talk.run("go")

    assert (result.status, result.usage["total_tokens"], result.usage["model_calls"]) == ("FAILED", 50, 1)


async def test_usage_of_a_model_called_by_middleware_is_counted() -> None:
    judge = ScriptedChatModel([reply_with_usage("Fine by me.", 7, 3)], cycle=True)

    @wrap_model_call
    async def judging(request: ModelRequest[Any], handler: Handler) -> Any:
        await judge.ainvoke("Is that so?")
        return await handler(request)

    talk = new_session(ScriptedChatModel([NOTHING, reply_with_usage("Done.", 45, 5)]), echo, hooks=[judging])

    parts = [part async for part in talk.stream("go")]

    usage = parts[-1].result.usage  # type: ignore[union-attr]  # the last part is Done
    assert (
        "".join(part.text for part in parts if isinstance(part, Token)),
        usage["total_tokens"],
        usage["model_calls"],
    ) == ("Done.", 170, 4)


async def test_usage_of_a_reply_from_middlewares_model_is_counted() -> None:
    other = ScriptedChatModel([reply_with_usage("No more actions.", 7, 3), reply_with_usage("Done.", 7, 3)])

    @wrap_model_call
    async def elsewhere(request: ModelRequest[Any], handler: Handler) -> Any:
        return await other.ainvoke(request.messages)

    result = await new_session(ScriptedChatModel(["never"]), echo, hooks=[elsewhere]).run("go")

    assert (result.answer, result.usage["total_tokens"], result.usage["model_calls"]) == ("Done.", 20, 2)


async def test_a_reply_without_a_model_is_not_counted() -> None:
    @wrap_model_call
    async def by_heart(request: ModelRequest[Any], handler: Handler) -> Any:
        return AIMessage("I know that by heart.")

    result = await new_session(ScriptedChatModel(["never"]), echo, hooks=[by_heart]).run("go")

    assert (result.answer, result.usage["total_tokens"], result.usage["model_calls"]) == ("I know that by heart.", 0, 0)


@pytest.mark.parametrize(
    ("text", "reported", "used_"),
    [
        ("", None, (True, 0)),
        ("", {"input_tokens": 7, "output_tokens": 1, "total_tokens": 8}, (7, 1)),
        ("", {"input_tokens": 0, "output_tokens": 3, "total_tokens": 3}, (True, 3)),
    ],
    ids=["no usage", "usage", "usage of the reply alone"],
)
def test_tokens_of_a_cut_off_reply_are_estimated(text: str, reported: Any, used_: tuple[Any, int]) -> None:
    cut_off = cut_off_reply([AIMessage("x" * 400)], text, reported, model="m")

    figures: Any = cut_off.usage_metadata
    assert (
        figures["input_tokens"] >= 100 if used_[0] is True else figures["input_tokens"],
        figures["output_tokens"],
        figures["total_tokens"] == figures["input_tokens"] + figures["output_tokens"],
        cut_off.response_metadata,
    ) == (*used_, True, {"model_name": "m", ESTIMATED: True})
