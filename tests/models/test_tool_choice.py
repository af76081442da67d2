"""A client's forced tool choice when that tool is not offered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain.agents.middleware import wrap_model_call
from langchain.agents.middleware.types import ModelRequest
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, LoopHook, LoopPlan, RequestPatch, ScriptedChatModel, Session, create_graph_agent
from graph_agent.hooks import HookRequest, HookResponse
from graph_agent.models.client import ModelClient
from tests.support.agents import echo
from tests.support.openai_stub import Failure, Reply, StubFactory, StubReply, openai_stub

__all__ = ["openai_stub"]

THEIRS = {"type": "function", "function": {"name": "theirs", "parameters": {"type": "object", "properties": {}}}}
CONTEXT: Any = {"client_tools": [THEIRS], "client_tool_choice": "theirs"}


def strict(reply: StubReply) -> Callable[[dict[str, Any]], StubReply]:
    """The reply of a provider that refuses a choice of a tool it is not sent."""

    def read(body: dict[str, Any]) -> StubReply:
        choice = body.get("tool_choice")
        names = [tool["function"]["name"] for tool in body.get("tools", [])]
        if isinstance(choice, dict) and choice["function"]["name"] not in names:
            return Failure(400, "Tool choice names no tool.", param="tool_choice")
        return reply

    return read


CALL = strict(Reply(tool_calls=(("theirs", {}),)))


def choices(bodies: list[dict[str, Any]]) -> list[Any]:
    """The tool choice of each request: a tool's name, a word, or None."""
    asked = [body.get("tool_choice") for body in bodies]
    return [choice["function"]["name"] if isinstance(choice, dict) else choice for choice in asked]


async def test_a_choice_of_a_withheld_tool_becomes_auto(openai_stub: StubFactory) -> None:
    other = strict(Reply(tool_calls=(("echo", {"text": "a"}),)))
    stub = openai_stub(*[CALL] * 4, other, strict("No more actions."), strict("Done."))
    async with stub.chat_model() as model:
        graph = create_graph_agent(model, tools=[echo], config=LoopConfig(max_steps=20), checkpointer=InMemorySaver())
        talk = Session(graph, "s1")

        result = await talk.run("go", context=CONTEXT)
        while result.interrupts:
            answer = {each.id: {"content": "same", "status": "success"} for each in result.interrupts}
            result = await talk.resume(answer, context=CONTEXT)

    warnings = [event["message"] for event in await talk.events() if event["type"] == "warning"]
    assert (result.answer, result.status, choices(stub.bodies), warnings) == (
        "Done.",
        "COMPLETED",
        ["theirs"] * 4 + [None, None, "none"],
        ["Tool theirs is disabled for this input; the tool choice is ignored."],
    )


class Narrows(LoopHook):
    """Removes the client's tool."""

    def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        return request.depth == 0 and request.phase == "plan", None

    def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
        left = [tool for tool in request.tools if tool["function"]["name"] != "theirs"]
        return LoopPlan(run_agentic_loop=True, request_patch=RequestPatch(tools=left))


@wrap_model_call
async def narrows(request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]) -> Any:
    return await handler(request.override(tools=[tool for tool in request.tools if not isinstance(tool, dict)]))


@pytest.mark.parametrize(
    ("hook", "asked"), [(Narrows(), ["theirs", None, "none"]), (narrows, [None, "none"])], ids=["patch", "middleware"]
)
async def test_a_choice_of_a_tool_that_was_taken_away_is_not_sent(
    openai_stub: StubFactory, hook: Any, asked: list[Any]
) -> None:
    replies = [strict("No more actions.")] * (len(asked) - 1)
    stub = openai_stub(*replies, strict("Done."))
    async with stub.chat_model() as model:
        config = LoopConfig(tool_calling="native", finalize="compose")
        graph = create_graph_agent(model, tools=[echo], hooks=[hook], config=config, checkpointer=InMemorySaver())

        result = await Session(graph, "s1").run("go", context=CONTEXT)

    assert (result.answer, choices(stub.bodies)) == ("Done.", asked)


@pytest.mark.parametrize(("choice", "sent"), [("a.b", "a_b"), ("any", "any"), ("gone", None), (None, None)])
async def test_a_choice_uses_the_provider_alias(choice: str | None, sent: str | None) -> None:
    schema = {"type": "function", "function": {"name": "a.b", "description": "", "parameters": {}}}
    model = ScriptedChatModel(["x"])

    await ModelClient(model, [schema], tool_choice=choice).ask("plan", [], LoopConfig(), mode="native", quiet=True)

    assert model.requests[0].tool_choice == sent
