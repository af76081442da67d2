"""Which node carries the answer in `stream_mode="messages"`, as the table of `docs/migrating.md` states it."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware, PIIMiddleware

from graph_agent import ScriptedChatModel, create_graph_agent
from tests.support.agents import asks, echo


class Before(AgentMiddleware):
    async def abefore_model(self, state: Any, runtime: Any) -> None:
        return None


class AfterModel(AgentMiddleware):
    async def aafter_model(self, state: Any, runtime: Any) -> None:
        return None


class AfterAgent(AgentMiddleware):
    async def aafter_agent(self, state: Any, runtime: Any) -> None:
        return None


class Wrap(AgentMiddleware):
    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request)


class WrapTool(AgentMiddleware):
    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return await handler(request)


def keeps(made: Any) -> AgentMiddleware:
    """The middleware, which declares that it leaves the text of replies as it is."""
    made.rewrites_replies = False
    kept: AgentMiddleware = made
    return kept


@pytest.mark.parametrize(
    ("middleware", "node"),
    [
        ([], "plan"),
        ([WrapTool()], "plan"),
        ([keeps(Wrap())], "plan"),
        ([Before()], "model"),
        ([PIIMiddleware("email")], "model"),
        ([keeps(AfterModel())], "model"),
        ([Before(), keeps(Wrap())], "model"),
        ([Wrap()], "finalize"),
        ([AfterModel()], "finalize"),
        ([AfterAgent()], "finalize"),
        ([Before(), Wrap()], "finalize"),
        ([PIIMiddleware("email", apply_to_output=True)], "finalize"),
    ],
)
async def test_the_middleware_decides_which_node_streams_the_answer(
    middleware: list[AgentMiddleware], node: str
) -> None:
    model = ScriptedChatModel([asks(("a", "echo", {"text": "x"})), "Take an umbrella."])
    agent = create_graph_agent(model, tools=[echo], middleware=middleware)

    streamed = [
        (metadata["langgraph_node"], message.text)
        async for message, metadata in agent.astream({"messages": [("user", "Hi")]}, stream_mode="messages")
        if message.type != "tool" and message.text
    ]

    assert ({each for each, _ in streamed}, "".join(text for _, text in streamed), len(streamed) == 1) == (
        {node},
        "Take an umbrella.",
        node == "finalize",
    )
