"""Rules of endpoints in whole runs: documents, and a history with calls for an agent without tools."""

from __future__ import annotations

import base64
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from tests.support.agents import echo
from tests.support.openai_stub import Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]  # a fixture

DOCUMENT = {
    "type": "file",
    "base64": base64.b64encode(bytes(400_000)).decode(),
    "mime_type": "application/pdf",
    "filename": "report.pdf",
}


async def test_a_large_document_stays_in_the_conversation() -> None:
    model = ScriptedChatModel(["It is a report.", "It has four pages."], profile={"max_input_tokens": 32_000})
    session = Session(create_graph_agent(model, checkpointer=InMemorySaver()), "s1")

    await session.run([HumanMessage([{"type": "text", "text": "What is this?"}, DOCUMENT])])
    await session.run("How long is it?")

    model.assert_spent()
    contents: list[Any] = [request.messages[1].content for request in model.requests]
    sent = [[block["type"] for block in content] for content in contents]
    assert sent == [["text", "file"]] * 2


async def test_calls_of_a_history_are_text_for_an_endpoint_that_demands_tools_with_them(
    openai_stub: StubFactory,
) -> None:
    stub = openai_stub(Reply(tool_calls=(("echo", {"text": "a"}),)), "Done.", "You are welcome.")
    saver: Any = InMemorySaver()
    config = LoopConfig(tool_calling="native", model_rules={"*": {"tools_with_calls": True}})
    async with stub.chat_model() as model:
        await Session(create_graph_agent(model, tools=[echo], config=config, checkpointer=saver), "s1").run("go")
        answer = (
            await Session(create_graph_agent(model, config=config, checkpointer=saver), "s1").run("Thanks!")
        ).answer

    roles = [message["role"] for message in stub.bodies[-1]["messages"]]
    assert (answer, roles, '{"tool_calls": [{"name": "echo"' in str(stub.bodies[-1]["messages"])) == (
        "You are welcome.",
        ["system", "user", "assistant", "user", "assistant", "user"],
        True,
    )
