"""Hooks and middleware receive copies: their changes do not affect the agent."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents.middleware import wrap_model_call, wrap_tool_call
from langchain.agents.middleware.types import ModelRequest, ToolCallRequest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, LoopHook, LoopPlan, RequestPatch, Session, create_graph_agent
from graph_agent.core.extensions.hook_copies import LazyRequestCopy, copied
from graph_agent.hooks import HookRequest, HookResponse
from tests.support.agents import echo, says
from tests.support.openai_stub import Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]

CALL = Reply(tool_calls=(("echo", {"text": "a"}),))
WEB = {
    "type": "function",
    "function": {"name": "web", "description": "Look.", "parameters": {"type": "object", "properties": {}}},
}


def spoil(value: Any) -> None:
    """Mutate a value recursively."""
    if isinstance(value, dict):
        for item in value.values():
            spoil(item)
        for key in value:
            if isinstance(value[key], str):
                value[key] = "SPOILT"
        value["spoilt"] = True
    elif isinstance(value, list):
        for item in value:
            spoil(item)
        value.append("SPOILT")
    elif isinstance(value, AIMessage | HumanMessage | ToolMessage | SystemMessage):
        spoil(value.additional_kwargs)
        spoil(value.response_metadata)
        if isinstance(value, AIMessage):
            spoil(value.tool_calls)
        value.content = "SPOILT"


class Vandal(LoopHook):
    """Mutates everything it receives."""

    def __init__(self) -> None:
        self.tools = [copy.deepcopy(WEB)]

    def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        spoil(self.tools[0])
        spoil([response.message, response.calls, response.usage])
        spoil([request.messages, request.tools, request.optional_params, request.kwargs])
        return False, None


@wrap_model_call
async def vandal(request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]) -> Any:
    response = await handler(request)
    spoil(request.messages)
    spoil([tool for tool in request.tools if isinstance(tool, dict)])
    spoil(request.state)
    return response


@wrap_tool_call
async def vandal_of_calls(request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]) -> Any:
    answer = await handler(request)
    spoil(request.tool_call)
    return answer


@pytest.mark.parametrize("hooks", [[Vandal], [vandal, vandal_of_calls]], ids=["loop hook", "middleware"])
async def test_changes_to_lent_objects_have_no_effect(openai_stub: StubFactory, hooks: list[Any]) -> None:
    class Offers(LoopHook):
        tools = (copy.deepcopy(WEB),)

    stub = openai_stub(CALL, CALL, "No more actions.", "Done.")
    async with stub.chat_model() as model:
        made = [hook() if isinstance(hook, type) else hook for hook in hooks]
        graph = create_graph_agent(
            model, tools=[echo], hooks=[Offers(), *made], config=LoopConfig(stop=["X"]), checkpointer=InMemorySaver()
        )

        result = await Session(graph, "s1").run("go")

    state = (await graph.aget_state({"configurable": {"thread_id": "s1"}})).values
    assert (result.answer, "SPOILT" in str(stub.bodies), "SPOILT" in str(state)) == ("Done.", False, False)


async def test_later_changes_to_a_hooks_plan_have_no_effect(openai_stub: StubFactory) -> None:
    note = HumanMessage([{"type": "text", "text": "A note."}])

    class Spoils(LoopHook):
        def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
            if request.depth:
                spoil(note)
            return request.depth == 0 and request.phase == "plan", None

        def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
            patch = RequestPatch(messages=[note])
            return LoopPlan(run_agentic_loop=True, request_patch=patch, keep_messages=[note])

    stub = openai_stub("No more actions.", "No more actions.", "Done.")
    async with stub.chat_model() as model:
        config = LoopConfig(tool_calling="native", finalize="compose")
        await create_graph_agent(model, tools=[echo], hooks=[Spoils()], config=config).ainvoke(says("go"))

    sent = [next(m["content"] for m in body["messages"] if m["role"] == "user") for body in stub.bodies[1:]]
    assert (sent[0], sent[1].startswith("go\n\nA note.")) == ("A note.", True)


def request(**fields: Any) -> HookRequest:
    given: dict[str, Any] = {
        "model": "m",
        "messages": [HumanMessage("go")],
        "tools": [WEB],
        "max_tokens": None,
        "optional_params": {"stop": ["X"]},
        "kwargs": {},
        "settings": LoopConfig(),
        "session_id": "s1",
        "step": 1,
    }
    return HookRequest(**{**given, **fields})


def test_a_lent_request_is_copied_only_where_it_is_read() -> None:
    own = request()

    lent = LazyRequestCopy.of(own)
    read = lent.messages
    other = replace(lent, depth=2)

    assert (
        read == own.messages,
        read is own.messages or read[0] is own.messages[0],
        lent.messages is read,
        (other.depth, other.messages, other.tools, other.step),
        hasattr(lent, "nothing of the kind"),
    ) == (True, False, True, (2, own.messages, own.tools, 1), False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, st.dictionaries(st.text(min_size=1, max_size=3), JSON, max_size=3))
def test_a_copy_is_equal_and_independent(value: Any, arguments: dict[str, Any]) -> None:
    call: Any = {"name": "f", "args": arguments, "id": "1", "type": "tool_call"}
    message = AIMessage("x", id="m", tool_calls=[call], additional_kwargs={"k": value})
    whole: list[AnyMessage | Any] = [value, message]
    before = copy.deepcopy(whole)

    made = copied(whole)
    equal = made == whole
    spoil(made)

    assert (equal, whole) == (True, before)
