"""What hooks and middleware did to a reply, in the session's events: by whom, and the model's own words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, LoopPlan, ScriptedChatModel, Session, create_graph_agent
from graph_agent.hooks.web_search import WebSearchInterception
from tests.support.agents import asks, echo
from tests.support.hooks import FixedPlanHook

CALL = asks(("a", "echo", {"text": "x"}))


async def hook_events(model: ScriptedChatModel, *hooks: Any, **config: Any) -> list[dict[str, Any]]:
    """Run one input, and return its `hook` events without their common fields."""
    agent = create_graph_agent(model, [echo], hooks=hooks, config=LoopConfig(**config), checkpointer=InMemorySaver())
    talk = Session(agent, "s1")
    await talk.run("Go.")
    common = {"type", "seq", "ts", "session_id", "step"}
    return [
        {name: value for name, value in event.items() if name not in common}
        for event in await talk.events()
        if event["type"] == "hook"
    ]


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(
    ("reply", "own"),
    [
        ("My own words.", {"reply": "My own words."}),
        (CALL, {"reply": "", "calls": [{"name": "echo", "arguments": {"text": "x"}}]}),
    ],
)
async def test_an_override_leaves_the_name_of_its_hook_and_the_models_own_reply(
    reply: str, own: dict[str, Any], recorded: bool
) -> None:
    hook = FixedPlanHook(LoopPlan(response_override="From the hook."))

    events = await hook_events(ScriptedChatModel([reply]), hook, record_requests=recorded)

    assert events == [{"name": "FixedPlanHook", "action": "replaced", **own}]


async def test_an_end_leaves_the_calls_that_did_not_run() -> None:
    events = await hook_events(ScriptedChatModel([CALL, "Done."]), FixedPlanHook(LoopPlan(terminate=True)))

    calls = [{"name": "echo", "arguments": {"text": "x"}}]
    assert events == [{"name": "FixedPlanHook", "action": "ended", "reply": "", "calls": calls}]


async def test_what_a_hook_fulfilled_is_in_the_event_of_the_rerun() -> None:
    async def search(query: str) -> str:
        return f"Found {query}."

    script = [asks(("w", "web_search", {"query": "tea"})), "Tea is found."]

    events = await hook_events(ScriptedChatModel(script), WebSearchInterception(search))

    assert [(each["name"], each["action"], each["calls"], each["messages"][-1]) for each in events] == [
        (
            "WebSearchInterception",
            "rerun",
            [{"name": "web_search", "arguments": {"query": "tea"}}],
            {"type": "tool", "content": "Found tea."},
        )
    ]


Handler = Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]


class Rewrites(AgentMiddleware):
    """Replaces every answer."""

    async def awrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> Any:
        await handler(request)
        return AIMessage("Allowed words.")


class Mutates(AgentMiddleware):
    """Changes the model's message itself."""

    async def awrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> Any:
        response = await handler(request)
        response.result[0].content = "Allowed words."
        return response


class Answers(AgentMiddleware):
    """Answers without the model."""

    async def awrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> Any:
        return AIMessage("Allowed words.")


class Passes(AgentMiddleware):
    """Changes nothing."""

    async def awrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> Any:
        return await handler(request)


@pytest.mark.parametrize("finalize", ["direct", "compose"])
@pytest.mark.parametrize(
    ("middleware", "fields"),
    [
        (Rewrites(), {"reply": "My own words."}),
        (Mutates(), {"reply": "My own words."}),
        (Answers(), {}),
        (Passes(), None),
    ],
    ids=["rewrites", "mutates", "answers", "passes"],
)
async def test_a_reply_that_middleware_replaced_is_in_an_event(
    middleware: AgentMiddleware, fields: dict[str, Any] | None, finalize: str
) -> None:
    events = await hook_events(ScriptedChatModel(["My own words."] * 2), middleware, finalize=finalize)

    name = f"{type(middleware).__name__}.wrap_model_call"
    expected = [] if fields is None else [{"name": name, "action": "replaced", **fields}]
    assert events[-1:] == expected
