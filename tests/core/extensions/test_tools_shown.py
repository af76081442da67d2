"""Hooks and middleware see and withhold the offered tools, in every mode of tool calling."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain.agents.middleware import wrap_model_call, wrap_tool_call
from langchain.agents.middleware.types import ModelRequest
from langchain_core.messages import SystemMessage
from langchain_core.tools import BaseTool

from graph_agent import GraphDelegate, LoopConfig, LoopHook, LoopPlan, RequestPatch, ScriptedChatModel
from graph_agent import create_graph_agent as create
from graph_agent.core.extensions.wrap_model_call import ModelMiddleware
from graph_agent.hooks import HookRequest, HookResponse
from graph_agent.models.prompts import Prompts
from graph_agent.models.system_prompt import replace_tools_text, tools_in_text
from tests.support.agents import add, asks, echo, says
from tests.support.openai_stub import Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]

MODES = ["native", "text", "wave"]
DONE = '{"status": "done", "tools": []}'
NOTHING: dict[str, str] = {"native": "No more actions.", "text": "No more actions.", "wave": DONE}
CALL: dict[str, str | Reply] = {
    "native": Reply(tool_calls=(("echo", {"text": "a"}),)),
    "text": asks(("c1", "echo", {"text": "a"})),
    "wave": '{"status": "continue", "tools": [{"id": "t1", "tool": "echo", "args": {"text": "a"}}]}',
}


def name(tool: Any) -> str:
    return str(tool.name if isinstance(tool, BaseTool) else tool["function"]["name"])


def offered(body: dict[str, Any]) -> list[str]:
    """The tools of a request, in its tool list or in its system prompt."""
    in_prompt = re.findall(r"^## (\S+)", str(body["messages"][0]["content"]), re.MULTILINE)
    return [
        tool["function"]["name"] for tool in body.get("tools", []) if tool["function"]["name"] != "make_plan"
    ] + in_prompt


def leaving(*names: str, seen: list[list[str]]) -> Any:
    """Middleware that keeps only these tools in each request."""

    @wrap_model_call
    async def left(request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]) -> Any:
        seen.append([name(tool) for tool in request.tools])
        return await handler(request.override(tools=[tool for tool in request.tools if name(tool) in names]))

    return left


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("names", [("add", "delegate_to_r"), ()], ids=["some", "none"])
async def test_middleware_sees_the_tools_and_takes_some_away(
    openai_stub: StubFactory, mode: Any, names: tuple[str, ...]
) -> None:
    seen: list[list[str]] = []
    stub = openai_stub(NOTHING[mode], "Done.")
    delegate = GraphDelegate("r", "R.", create(ScriptedChatModel(["never"])))
    async with stub.chat_model() as model:
        graph = create(
            model,
            tools=[echo, add],
            delegates=[delegate],
            hooks=[leaving(*names, seen=seen)],
            config=LoopConfig(tool_calling=mode),
        )

        state = await graph.ainvoke(says("go"))

    everything = ["echo", "add", "delegate_to_r"]
    assert (state["messages"][-1].text, seen, [offered(body) for body in stub.bodies]) == (
        "Done.",
        [everything] * 2,
        [list(names)] * 2,
    )


@pytest.mark.parametrize("mode", MODES)
async def test_a_patch_of_the_tools_counts_for_one_request(openai_stub: StubFactory, mode: Any) -> None:
    shown: list[list[str]] = []

    class Narrows(LoopHook):
        def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
            shown.append([name(tool) for tool in request.tools])
            return bool(response.calls), None

        def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
            left = [tool for tool in request.tools if name(tool) != "echo"]
            return LoopPlan(run_agentic_loop=True, request_patch=RequestPatch(tools=left))

    stub = openai_stub(CALL[mode], NOTHING[mode], "Done.")
    async with stub.chat_model() as model:
        graph = create(model, tools=[echo, add], hooks=[Narrows()], config=LoopConfig(tool_calling=mode))

        await graph.ainvoke(says("go"))

    both = ["echo", "add"]
    assert (shown, [offered(body) for body in stub.bodies]) == ([both, ["add"], both], [both, ["add"], both])


@pytest.mark.parametrize("mode", MODES)
async def test_middleware_sees_what_a_patch_has_left(openai_stub: StubFactory, mode: Any) -> None:
    seen: list[list[str]] = []

    class Narrows(LoopHook):
        def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
            return request.depth == 0 and request.phase == "plan", None

        def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
            return LoopPlan(run_agentic_loop=True, request_patch=RequestPatch(tools=request.tools[:1]))

    stub = openai_stub(NOTHING[mode], NOTHING[mode], "Done.")
    async with stub.chat_model() as model:
        hooks = [Narrows(), leaving("echo", "add", seen=seen)]
        await create(
            model, tools=[echo, add], hooks=hooks, config=LoopConfig(tool_calling=mode, finalize="compose")
        ).ainvoke(says("go"))

    both = ["echo", "add"]
    assert (seen, [offered(body) for body in stub.bodies]) == ([both, ["echo"], both], [both, ["echo"], both])


@pytest.mark.parametrize("mode", ["text", "wave"])
async def test_a_tool_added_by_middleware_is_in_the_prompt(openai_stub: StubFactory, mode: Any) -> None:
    @wrap_model_call
    async def adding(request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]) -> Any:
        prompt = SystemMessage([{"type": "text", "text": f"Be brief.\n{request.system_prompt}"}, {"type": "other"}])
        return await handler(request.override(tools=[*request.tools, add], system_message=prompt))

    @wrap_tool_call
    async def running(request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        return await handler(request.override(tool=add))

    model = ScriptedChatModel([NOTHING[mode], "Done."])
    await create(model, tools=[echo], hooks=[adding, running], config=LoopConfig(tool_calling=mode)).ainvoke(says("go"))

    prompts: Any = [request.messages[0].content for request in model.requests]
    assert [re.findall(r"^## (\S+)", blocks[0]["text"], re.MULTILINE) for blocks in prompts] == [["echo", "add"]] * 2


def test_a_custom_system_prompt_is_unchanged() -> None:
    prompts, message = Prompts(), SystemMessage("Mine.")
    schemas = ModelMiddleware([], {}, prompts).schemas([echo], [])

    listed = tools_in_text(prompts, schemas, plan=False)

    assert (replace_tools_text([message], listed, ""), "## echo" in listed, tools_in_text(prompts, [], plan=True)) == (
        [message],
        True,
        "",
    )
