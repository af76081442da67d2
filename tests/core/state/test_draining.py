"""A drained run stops before its next calls, but not before the end of its answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl
from pydantic import PrivateAttr

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from tests.support.agents import says, thread

CALL = '{"tool_calls": [{"name": "look_up", "arguments": {}}]}'


class DrainingModel(ScriptedChatModel):
    """Requests a drain at each of its calls."""

    _control: RunControl = PrivateAttr(default_factory=RunControl)

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        self._control.request_drain()
        return await super()._agenerate(*args, **kwargs)

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        self._control.request_drain()
        async for chunk in super()._astream(*args, **kwargs):
            yield chunk


class AfterAgent(AgentMiddleware[Any, Any]):
    """Puts a node between the answer and the end of the run."""

    def __init__(self) -> None:
        self.ran = 0

    async def aafter_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        self.ran += 1
        return None


@tool
def look_up() -> str:
    """Look something up."""
    return "found"


@pytest.mark.parametrize("finalize", ["auto", "compose"])
async def test_a_drained_run_gives_its_answer(finalize: Any) -> None:
    model = DrainingModel(responses=["No more actions.", "Hello."] if finalize == "compose" else ["Hello."])
    agent = create_graph_agent(
        model, tools=[look_up], config=LoopConfig(finalize=finalize), checkpointer=InMemorySaver()
    )

    state = await agent.ainvoke(says("hi"), thread("s"), control=model._control)

    assert (state["messages"][-1].text, state["status"]) == ("Hello.", "COMPLETED")


async def test_a_drained_run_starts_no_call() -> None:
    model = DrainingModel(responses=[CALL, "Found."])
    agent = create_graph_agent(model, tools=[look_up], checkpointer=InMemorySaver())

    with pytest.raises(GraphDrained):
        await agent.ainvoke(says("hi"), thread("s"), control=model._control)
    resumed = await agent.ainvoke(None, thread("s"))

    assert (resumed["messages"][-1].text, resumed["status"]) == ("Found.", "COMPLETED")


async def test_a_drained_run_gives_its_answer_through_hooks_of_middleware() -> None:
    model, hook = DrainingModel(responses=["Hello."]), AfterAgent()
    agent = create_graph_agent(model, tools=[look_up], hooks=[hook], checkpointer=InMemorySaver())

    state = await agent.ainvoke(says("hi"), thread("s"), control=model._control)

    assert (state["messages"][-1].text, state["status"], hook.ran) == ("Hello.", "COMPLETED", 1)


async def test_a_drained_run_with_hooks_of_middleware_starts_no_call() -> None:
    model = DrainingModel(responses=[CALL, "Found."])
    agent = create_graph_agent(model, tools=[look_up], hooks=[AfterAgent()], checkpointer=InMemorySaver())

    with pytest.raises(GraphDrained):
        await agent.ainvoke(says("hi"), thread("s"), control=model._control)
