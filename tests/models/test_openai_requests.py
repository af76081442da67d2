"""Requests to OpenAI's API equal those of LangChain, without the `openai` package's traversal."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.content import is_data_content_block
from langchain_openai import ChatOpenAI

from graph_agent.models.wire.openai_family import adapted
from tests.support.openai_stub import StubFactory, openai_stub

__all__ = ["openai_stub"]  # a fixture

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
MESSAGES = [
    SystemMessage("Be brief."),
    HumanMessage([{"type": "text", "text": "What is it?"}, {"type": "image", "url": "https://example.com/a.png"}]),
    AIMessage("", tool_calls=[{"id": "c", "name": "look", "args": {"of": "x"}}]),
    ToolMessage("x", tool_call_id="c"),
]


@pytest.mark.parametrize("extra", [None, {"seed": 7}])
@pytest.mark.parametrize("streams", [True, False])
async def test_request_is_the_one_that_langchain_sends(
    openai_stub: StubFactory, streams: bool, extra: dict[str, Any] | None
) -> None:
    stub = openai_stub("Yes.", "Yes.")
    replies = []
    for kind in (ChatOpenAI, adapted(ChatOpenAI)):
        async with stub.chat_model(kind=kind, extra_body=extra, streaming=streams) as model:
            replies.append((await model.bind_tools([TOOL]).ainvoke(MESSAGES)).text)

    assert (replies, stub.bodies[1]) == (["Yes.", "Yes."], stub.bodies[0])


def test_types_of_content_blocks_are_known_after_they_are_kept() -> None:
    blocks = [{"type": "text", "text": "x"}, {"type": "image", "url": "https://example.com/a.png"}]

    assert [is_data_content_block(block) for block in blocks] == [False, True]
