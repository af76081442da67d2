"""Summaries of conversations outside a session: hooks and middleware see them as they see those of sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    ModelRequest,
    ModelResponse,
    PIIMiddleware,
    before_model,
    wrap_model_call,
)
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from pydantic import SecretStr

from graph_agent import AgentContext, LoopHook, ScriptedChatModel, create_graph_agent
from graph_agent.session.conversation import NoSummaryError, summarize_conversation

CONVERSATION: list[AnyMessage] = [
    HumanMessage("Write to ana@example.com.", id="1"),
    AIMessage("", id="2", tool_calls=[{"id": "c", "name": "look", "args": {}}]),
    ToolMessage("A secret result.", id="3", tool_call_id="c"),
]


class HidesResults(LoopHook):
    def rewrite_results(self, results: list[ToolMessage]) -> Mapping[str, str]:
        return {str(result.id): "[hidden]" for result in results}


@wrap_model_call
async def doubled(request: ModelRequest[Any], handler: Any) -> ModelResponse[Any]:
    """Double the reply, and require what middleware finds in a run."""
    assert request.runtime.context.credentials.keys() == {"token"}
    response: ModelResponse[Any] = await handler(request)
    return ModelResponse(result=[AIMessage(f"{message.text} {message.text}") for message in response.result])


async def summarize(model: ScriptedChatModel, hooks: list[Any]) -> str:
    builder = create_graph_agent(model, hooks=hooks).builder
    context = AgentContext(credentials={"token": SecretStr("t")})
    text, _ = await summarize_conversation(builder.deps, CONVERSATION, "Be brief.", context)
    return text


async def test_hooks_and_middleware_see_a_conversation_before_its_summary() -> None:
    model = ScriptedChatModel(["In short."])
    pii: AgentMiddleware[Any, Any, Any] = PIIMiddleware("email")
    summary = await summarize(model, [pii, HidesResults(), doubled])
    [request] = model.requests
    text = request.messages[-1].text

    assert (summary, request.messages[0].text) == ("In short. In short.", "Be brief.")
    assert ["ana@example.com" in text, "REDACTED_EMAIL" in text, "secret" in text, "[hidden]" in text] == [
        False,
        True,
        False,
        True,
    ]


async def test_a_hook_that_ends_an_input_ends_a_summary() -> None:
    @before_model(can_jump_to=["end"])
    def stops(state: Any, runtime: Any) -> dict[str, Any]:
        return {"jump_to": "end", "messages": [AIMessage("No.")]}

    model = ScriptedChatModel([])
    with pytest.raises(NoSummaryError, match="stopped"):
        await summarize(model, [stops])

    assert model.requests == []
