"""Streaming with middleware: which takes it away, the warning that names it, and texts replaced after their stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    ContextEditingMiddleware,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    PIIMiddleware,
    TodoListMiddleware,
    after_agent,
    after_model,
    before_model,
    dynamic_prompt,
    wrap_model_call,
    wrap_tool_call,
)
from langchain_anthropic.middleware import AnthropicPromptCachingMiddleware
from langchain_core.messages import AIMessage, RemoveMessage
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, LoopHook, LoopPlan, ScriptedChatModel, Session, create_graph_agent
from graph_agent.session.results import Done, EventAdded, PlanText, Token
from tests.support.agents import asks, echo, says
from tests.support.doors import COMPLETED, Case, both

TEXT, MASKED = "Write to #a today.", "Write to #b today."
DONE = "No more actions."


@wrap_model_call
def blocking_wrapper(request: Any, handler: Any) -> Any:
    return handler(request)


@wrap_model_call
async def wrapper(request: Any, handler: Any) -> Any:
    return await handler(request)


@after_model
def after(state: Any, runtime: Any) -> None:
    return None


@after_agent
def at_the_end(state: Any, runtime: Any) -> None:
    return None


@before_model
def before(state: Any, runtime: Any) -> None:
    return None


@dynamic_prompt
def brief(request: Any) -> str:
    return "Be brief."


@wrap_tool_call
async def around_tools(request: Any, handler: Any) -> Any:
    return await handler(request)


class Logs(AgentMiddleware):
    """Wraps model calls, and keeps their replies."""

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request)


class DeclaredLogs(Logs):
    rewrites_replies = False


class DeclaredGuard(Logs):
    rewrites_replies = True


class MyRetry(ModelRetryMiddleware):
    """An empty subclass."""


class MyTodos(TodoListMiddleware):
    """Overrides a method that receives no reply."""

    def before_agent(self, state: Any, runtime: Any) -> None:
        return None


class MyLimit(ModelCallLimitMiddleware):
    """Overrides a method that receives replies."""

    def after_model(self, state: Any, runtime: Any) -> Any:
        return super().after_model(state, runtime)


class MyPII(PIIMiddleware):
    """An empty subclass."""


class MyPrompt(type(brief)):  # type: ignore[misc]  # the class that the decorator made
    """An empty subclass."""


MIDDLEWARE: dict[str, tuple[Callable[[], Any], bool, str]] = {
    "before_model": (lambda: before, True, ""),
    "dynamic_prompt": (lambda: brief, True, ""),
    "subclass of dynamic_prompt's": (MyPrompt, True, ""),
    "wrap_tool_call": (lambda: around_tools, True, ""),
    "declared": (DeclaredLogs, True, ""),
    "empty subclass": (MyRetry, True, ""),
    "subclass without replies": (MyTodos, True, ""),
    "prompt caching": (lambda: AnthropicPromptCachingMiddleware(unsupported_model_behavior="ignore"), True, ""),
    "fallback": (lambda: ModelFallbackMiddleware(ScriptedChatModel(["x"])), True, ""),
    "context editing": (ContextEditingMiddleware, True, ""),
    "approvals": (lambda: HumanInTheLoopMiddleware({"echo": True}), True, ""),
    "PII of the input": (lambda: MyPII("email", apply_to_output=False), True, ""),
    "PII of the output": (lambda: PIIMiddleware("email", apply_to_output=True), False, ""),
    "subclass with PII of the output": (lambda: MyPII("email", apply_to_output=True), False, ""),
    "declared guard": (DeclaredGuard, False, ""),
    "wrap_model_call": (lambda: wrapper, False, "'wrapper' may rewrite replies (awrap_model_call)"),
    "blocking wrap_model_call": (
        lambda: blocking_wrapper,
        False,
        "'blocking_wrapper' may rewrite replies (wrap_model_call)",
    ),
    "after_model": (lambda: after, False, "'after' may rewrite replies (after_model)"),
    "after_agent": (lambda: at_the_end, False, "'at_the_end' may rewrite replies (after_agent)"),
    "class": (Logs, False, "'Logs' may rewrite replies (awrap_model_call)"),
    "subclass with replies": (
        lambda: MyLimit(run_limit=9),
        False,
        "'MyLimit' may rewrite replies (after_model)",
    ),
}


@pytest.mark.parametrize("name", MIDDLEWARE)
async def test_middleware_takes_streaming_away_only_if_it_may_rewrite_and_then_a_warning_names_it(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, streams, warning = MIDDLEWARE[name]
    with caplog.at_level(logging.WARNING):
        agent = create_graph_agent(
            ScriptedChatModel(["One two three."]), [echo], middleware=[make()], checkpointer=InMemorySaver()
        )
    built = [record.getMessage() for record in caplog.records]

    parts = [part async for part in Session(agent, "s1").stream("go")]

    assert (
        [part.text for part in parts if isinstance(part, Token)],
        [(warning in text, "rewrites_replies = False" in text) for text in built],
    ) == (["One", " two", " three."] if streams else ["One two three."], [(True, True)] if warning else [])


def masked(message: AIMessage) -> AIMessage:
    return message.model_copy(update={"content": message.text.replace("#a", "#b")})


@wrap_model_call
async def masks_replies(request: Any, handler: Any) -> Any:
    response = await handler(request)
    return masked(response.result[-1])


@after_model
def masks_after_model(state: Any, runtime: Any) -> Any:
    return {"messages": [masked(state["messages"][-1])]}


@after_agent
def masks_at_the_end(state: Any, runtime: Any) -> Any:
    return {"messages": [masked(state["messages"][-1])]}


@after_agent
def replaces_at_the_end(state: Any, runtime: Any) -> Any:
    newest = state["messages"][-1]
    return {"messages": [RemoveMessage(id=newest.id), AIMessage(newest.text.replace("#a", "#b"))]}


class Masks(LoopHook):
    """Replaces an answer."""

    def should_run(self, response: Any, request: Any) -> Any:
        return "#a" in response.text, None

    def build_plan(self, context: Any, response: Any, request: Any) -> LoopPlan:
        return LoopPlan(response_override=response.text.replace("#a", "#b"))


class AsksAgain(Masks):
    """Has the model answer again."""

    def build_plan(self, context: Any, response: Any, request: Any) -> LoopPlan:
        return LoopPlan(run_agentic_loop=True)


GUARDS: dict[str, tuple[Any, list[Any]]] = {
    "wrap_model_call": (masks_replies, []),
    "after_model": (masks_after_model, []),
    "after_agent": (masks_at_the_end, []),
    "after_agent, another message": (replaces_at_the_end, []),
    "hook": (Masks(), []),
    "hook with a rerun": (AsksAgain(), [AIMessage(MASKED)]),
}
SCRIPTS: dict[str, list[Any]] = {"direct": [AIMessage(TEXT)], "composed": [AIMessage(DONE), AIMessage(TEXT)]}
EARLY: Any = {"stream_before_guards": True}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("guard", GUARDS)
async def test_a_text_replaced_after_its_stream_is_plan_text_with_a_warning(guard: str, script: str) -> None:
    hook, more = GUARDS[guard]
    agent = create_graph_agent(
        ScriptedChatModel([*SCRIPTS[script], *more]),
        [echo],
        hooks=[hook],
        config=LoopConfig(stream_before_guards=True),
        checkpointer=InMemorySaver(),
    )

    parts = [part async for part in Session(agent, "s1").stream("go")]

    tokens = [(part.message_id, part.text) for part in parts if isinstance(part, Token)]
    first = [text for id_, text in tokens if id_ == tokens[0][0]]
    events: list[Any] = [part.event for part in parts if isinstance(part, EventAdded)]
    done = parts[-1]
    assert isinstance(done, Done)
    assert {
        "streamed first": first,
        "then": "".join(text for id_, text in tokens if id_ != tokens[0][0]),
        "plan text": [(part.text, part.message_id == tokens[0][0]) for part in parts if isinstance(part, PlanText)],
        "warnings": [each.get("commentary") for each in events if each["type"] == "warning"],
        "answer": done.result.answer,
    } == {
        "streamed first": ["Write", " to", " #a", " today."],
        "then": MASKED,
        "plan text": [(TEXT, True)],
        "warnings": [TEXT],
        "answer": MASKED,
    }


@pytest.mark.sampled(5)
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("guard", GUARDS)
def test_a_text_replaced_after_its_stream_is_commentary_at_every_door(guard: str, script: str) -> None:
    hook, more = GUARDS[guard]
    case = Case("native", "auto", False, False, [*SCRIPTS[script], *more], None, limits=EARLY, hooks=[hook])

    streamed, whole = asyncio.run(both(case))

    items = [("message", "commentary", [f"{TEXT}\n\n"]), ("message", "final_answer", [MASKED])]
    response = (items, f"{TEXT}\n\n{MASKED}")
    assert (streamed, streamed) == (
        whole,
        {
            "openai_chat": [f"{TEXT}\n\n{MASKED}"],
            "anthropic_messages": [[TEXT, MASKED]],
            "responses": [response],
            "background": [response],
            "websocket": [response],
            "a2a jsonrpc": [(COMPLETED, MASKED)],
            "a2a rest": [(COMPLETED, MASKED)],
            "session": [(MASKED, None)],
        },
    )


@pytest.mark.parametrize("guard", GUARDS)
async def test_the_message_stream_has_the_replaced_text_and_the_answer_as_two_messages(guard: str) -> None:
    hook, more = GUARDS[guard]
    agent = create_graph_agent(
        ScriptedChatModel([AIMessage(TEXT), *more]), [echo], hooks=[hook], config=LoopConfig(stream_before_guards=True)
    )

    texts: dict[str, str] = {}
    async for message, _ in agent.astream(says("go"), stream_mode="messages"):
        if isinstance(message, AIMessage):
            texts[str(message.id)] = texts.get(str(message.id), "") + message.text

    assert list(texts.values()) == [TEXT, MASKED]


async def test_an_answer_that_no_guard_changes_is_streamed_once() -> None:
    agent = create_graph_agent(
        ScriptedChatModel([asks(("c1", "echo", {"text": "x"})), "One two three."]),
        [echo],
        hooks=[masks_replies, masks_after_model, masks_at_the_end, Masks()],
        config=LoopConfig(stream_before_guards=True),
        checkpointer=InMemorySaver(),
    )

    parts = [part async for part in Session(agent, "s1").stream("go")]

    events: list[Any] = [part.event for part in parts if isinstance(part, EventAdded)]
    assert (
        [part.text for part in parts if isinstance(part, Token)],
        [event for event in events if event["type"] == "warning"],
    ) == (["One", " two", " three."], [])


async def test_a_runs_context_cannot_have_answers_streamed_before_the_guards() -> None:
    agent = create_graph_agent(ScriptedChatModel([TEXT]), [echo], hooks=[Masks()], checkpointer=InMemorySaver())

    parts = [part async for part in Session(agent, "s1").stream("go", context=EARLY)]

    assert [part.text for part in parts if isinstance(part, Token)] == [MASKED]


async def test_streaming_before_guards_needs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        create_graph_agent(
            ScriptedChatModel([TEXT]), [echo], hooks=[Logs()], config=LoopConfig(stream_before_guards=True)
        )

    assert caplog.records == []
