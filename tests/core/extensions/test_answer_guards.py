"""Hooks and middleware that guard answers: they receive the user's text in every mode, before it is streamed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain.agents.middleware import ModelRetryMiddleware, PIIMiddleware, dynamic_prompt, wrap_model_call
from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from graph_agent import LoopConfig, LoopHook, LoopPlan, RequestPatch, ScriptedChatModel, Session, create_graph_agent
from graph_agent.hooks import HookRequest, HookResponse
from graph_agent.hooks.history_compression import HistoryCompression
from graph_agent.hooks.web_search import WebSearchInterception
from graph_agent.session.results import Token
from tests.support.agents import asks, echo, thread

SECRET, MASKED = "Write to a@example.com today.", "Write to [REDACTED_EMAIL] today."
CALL = asks(("c1", "echo", {"text": "x"}))
PLAN = json.dumps({"status": "continue", "tools": [{"id": "t1", "tool": "echo", "args": {"text": "x"}}]})
LAST = json.dumps({"status": "done", "tools": [{"id": "t1", "tool": "echo", "args": {"text": "x"}}]})
ANSWERED = json.dumps({"status": "done", "tools": [], "reasoning": "Nothing to run.", "answer": SECRET})
DONE = "No more actions."


def masked(text: str) -> str:
    return text.replace("a@example.com", "[REDACTED_EMAIL]")


class Masks(LoopHook):
    """Replaces an answer that contains an address."""

    def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        return not response.calls and "@" in response.text, None

    def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
        return LoopPlan(response_override=masked(response.text))


class MasksAsync(Masks):
    async def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:  # type: ignore[override]  # a coroutine is one of the two ways
        return super().should_run(response, request)


def masking() -> Any:
    """User-defined middleware that rewrites replies."""

    @wrap_model_call
    async def mask(request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]) -> Any:
        response = await handler(request)
        [reply] = response.result
        text = reply.text if reply.text.lstrip().startswith("{") else masked(reply.text)
        return ModelResponse(result=[reply.model_copy(update={"content": text})])

    return mask


def pii() -> Any:
    return PIIMiddleware("email", apply_to_output=True)


GUARDS: dict[str, Callable[[], Any]] = {
    "hook": Masks,
    "coroutine hook": MasksAsync,
    "wrap_model_call": masking,
    "PIIMiddleware": pii,
}

CASES: list[tuple[str, str, list[Any], dict[str, Any]]] = [
    ("auto", "native", [SECRET], {}),
    ("auto", "native", [CALL, SECRET], {}),
    ("auto", "native", [DONE, SECRET], {}),
    ("direct", "native", [CALL, SECRET], {}),
    ("compose", "native", [CALL, DONE, SECRET], {}),
    ("auto", "text", [CALL, SECRET], {}),
    ("direct", "text", [SECRET], {}),
    ("compose", "text", [DONE, SECRET], {}),
    ("auto", "wave", [ANSWERED], {}),
    ("auto", "wave", [PLAN, ANSWERED], {}),
    ("auto", "wave", [SECRET], {}),
    ("auto", "wave", [LAST, SECRET], {}),
    ("direct", "wave", [ANSWERED], {}),
    ("compose", "wave", [LAST, SECRET], {}),
    ("auto", "native", ["", SECRET], {}),
    ("compose", "native", [DONE, "", SECRET], {}),
]


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize(("finalize", "tool_calling", "script", "config"), CASES)
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_a_guard_rewrites_the_answer_before_it_is_shown(
    guard: str, finalize: Any, tool_calling: Any, script: list[Any], config: dict[str, Any], streamed: bool
) -> None:
    model = ScriptedChatModel(script)
    graph = create_graph_agent(
        model,
        tools=[echo],
        hooks=[GUARDS[guard]()],
        config=LoopConfig(finalize=finalize, tool_calling=tool_calling, **config),
        checkpointer=InMemorySaver(),
    )
    session = Session(graph, "s1")

    if streamed:
        parts = [part async for part in session.stream("go")]
        shown = "".join(part.text for part in parts if isinstance(part, Token))
        result = parts[-1].result  # type: ignore[union-attr]  # the last part is Done
    else:
        result = await session.run("go")
        shown = result.answer

    model.assert_spent()
    messages = (await graph.aget_state(thread())).values["messages"]
    assert (shown, result.answer, messages[-1].text, result.status) == (MASKED, MASKED, MASKED, "COMPLETED")


@pytest.mark.parametrize(("finalize", "tool_calling", "script", "config"), CASES)
@pytest.mark.parametrize("rewrites", [True, False], ids=["rewriting", "observing"])
async def test_wrap_model_call_runs_once_for_each_request(
    finalize: Any, tool_calling: Any, script: list[Any], config: dict[str, Any], rewrites: bool
) -> None:
    calls: list[str] = []

    @wrap_model_call
    async def count(request: Any, handler: Any) -> Any:
        response = await handler(request)
        calls.append(response.result[0].text)
        return ModelResponse(result=[AIMessage(f"{calls[-1]}!")]) if rewrites and "@" in calls[-1] else response

    model = ScriptedChatModel(script)
    settings = LoopConfig(finalize=finalize, tool_calling=tool_calling, **config)
    graph = create_graph_agent(model, tools=[echo], hooks=[count], config=settings, checkpointer=InMemorySaver())

    result = await Session(graph, "s1").run("go")

    assert (len(calls), calls[-1], result.answer) == (len(model.requests), SECRET, SECRET + "!" * rewrites)


@pytest.mark.parametrize("guard", GUARDS)
async def test_a_guard_rewrites_the_answer_of_an_agent_with_nothing_to_call(guard: str) -> None:
    graph = create_graph_agent(ScriptedChatModel([SECRET]), hooks=[GUARDS[guard]()], checkpointer=InMemorySaver())

    parts = [part async for part in Session(graph, "s1").stream("go")]

    assert [part.text for part in parts if isinstance(part, Token)] == [MASKED]


@pytest.mark.parametrize("guard", GUARDS)
async def test_a_guard_rewrites_the_answer_below_a_limit(guard: str) -> None:
    graph = create_graph_agent(
        ScriptedChatModel([CALL, SECRET]),
        tools=[echo],
        hooks=[GUARDS[guard]()],
        config=LoopConfig(max_steps=1),
        checkpointer=InMemorySaver(),
    )

    parts = [part async for part in Session(graph, "s1").stream("go")]

    result = parts[-1].result  # type: ignore[union-attr]  # the last part is Done
    shown = "".join(part.text for part in parts if isinstance(part, Token))
    assert (shown, result.answer, result.stop_reason) == (result.answer, result.answer, "step_limit")
    assert result.answer.startswith(f"Reached maximum reasoning steps (1)\n\n{MASKED}")


@tool(return_direct=True)
def address() -> str:
    """Look an address up."""
    return SECRET


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("finalize", ["auto", "direct", "compose"])
async def test_a_guard_rewrites_a_result_that_is_the_answer(guard: str, finalize: Any) -> None:
    model = ScriptedChatModel([asks(("c1", "address", {}))])
    graph = create_graph_agent(
        model,
        tools=[address],
        hooks=[GUARDS[guard]()],
        config=LoopConfig(finalize=finalize),
        checkpointer=InMemorySaver(),
    )

    parts = [part async for part in Session(graph, "s1").stream("go")]

    result = parts[-1].result  # type: ignore[union-attr]  # the last part is Done
    shown = [part.text for part in parts if isinstance(part, Token)]
    assert (shown, result.answer, result.usage["model_calls"]) == ([MASKED], MASKED, 1)


class Contact(BaseModel):
    address: str


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("script", [["{}"], [DONE]], ids=["direct", "composed"])
async def test_a_guard_rewrites_a_structured_answer(guard: str, script: list[str]) -> None:
    secret = json.dumps({"address": "a@example.com"})
    replies = [secret] if script == ["{}"] else [*script, secret]

    @wrap_model_call
    async def mask(request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]) -> Any:
        [reply] = (await handler(request)).result
        return ModelResponse(result=[reply.model_copy(update={"content": masked(reply.text)})])

    hooks = [mask if guard == "wrap_model_call" else GUARDS[guard]()]
    graph = create_graph_agent(
        ScriptedChatModel(replies), tools=[echo], hooks=hooks, response_format=Contact, checkpointer=InMemorySaver()
    )

    result = await Session(graph, "s1").run("go")

    assert (result.answer, result.structured_response) == (
        masked(secret),
        Contact(address="[REDACTED_EMAIL]"),
    )


async def test_a_refusal_is_shown_to_hooks() -> None:
    refusal = AIMessage(SECRET, response_metadata={"finish_reason": "content_filter"})
    graph = create_graph_agent(
        ScriptedChatModel([refusal]), tools=[echo], hooks=[Masks()], checkpointer=InMemorySaver()
    )

    result = await Session(graph, "s1").run("go")

    assert result.answer.startswith(MASKED)


class AsksAgain(LoopHook):
    """Requests a rerun of an answer that contains an address."""

    def __init__(self) -> None:
        self.phases: list[str] = []

    def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        self.phases.append(request.phase)
        return "@" in response.text, None

    def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
        messages = [*request.messages, AIMessage(response.text)]
        patch = RequestPatch(messages=messages, optional_params={"temperature": 0.5})
        return LoopPlan(run_agentic_loop=True, request_patch=patch)


async def test_a_hook_has_the_composed_answer_given_again() -> None:
    hook = AsksAgain()
    model = ScriptedChatModel([DONE, SECRET, "Write to us today."])
    config = LoopConfig(finalize="compose")
    graph = create_graph_agent(model, tools=[echo], hooks=[hook], config=config, checkpointer=InMemorySaver())

    result = await Session(graph, "s1").run("go")

    last = model.requests[-1]
    assert (
        result.answer,
        hook.phases,
        result.usage["model_calls"],
        [message.text[:21] for message in last.messages[1:]],
        (last.tool_choice, last.kwargs.get("temperature")),
    ) == (
        "Write to us today.",
        ["plan", "answer", "answer"],
        3,
        ["go", "Now provide your fina", SECRET[:21]],
        ("none", 0.5),
    )


async def test_a_hook_that_raises_on_the_answer_hides_it() -> None:
    class Breaks(LoopHook):
        def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
            if request.phase == "answer":
                raise ValueError("no judge")
            return False, None

    graph = create_graph_agent(
        ScriptedChatModel([DONE, SECRET]), tools=[echo], hooks=[Breaks()], checkpointer=InMemorySaver()
    )

    parts = [part async for part in Session(graph, "s1").stream("go")]

    result = parts[-1].result  # type: ignore[union-attr]  # the last part is Done
    shown = "".join(part.text for part in parts if isinstance(part, Token))
    assert (result.status, "a@example.com" in shown + result.answer) == ("FAILED", False)


def passing(**fields: Any) -> Any:
    """Middleware that changes requests only."""

    @wrap_model_call
    async def leaves_replies(request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]) -> Any:
        return await handler(request.override(model_settings={"temperature": 0}))

    for name, value in fields.items():
        setattr(leaves_replies, name, value)
    return leaves_replies


@dynamic_prompt
def brief(request: ModelRequest[Any]) -> str:
    return "Be brief."


class CallsOnly(Masks):
    sees_answers = False


@pytest.mark.parametrize(
    ("guard", "streams"),
    [
        (passing(rewrites_replies=False), True),
        (passing(), False),
        (brief, True),
        (ModelRetryMiddleware(), True),
        (pii(), False),
        (PIIMiddleware("email", apply_to_output=False), True),
        (Masks(), False),
        (CallsOnly(), True),
        (HistoryCompression(), True),
        (WebSearchInterception(str), True),
    ],
)
@pytest.mark.parametrize("script", [["One two."], [DONE, "One two."]], ids=["direct", "composed"])
async def test_an_answer_is_streamed_without_rewriting_middleware(guard: Any, streams: bool, script: list[str]) -> None:
    graph = create_graph_agent(ScriptedChatModel(script), tools=[echo], hooks=[guard], checkpointer=InMemorySaver())

    parts = [part async for part in Session(graph, "s1").stream("go")]

    assert [part.text for part in parts if isinstance(part, Token)] == (["One", " two."] if streams else ["One two."])
