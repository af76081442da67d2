"""Rules of endpoints in whole runs: documents, and a history with calls for an agent without tools."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

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


class City(BaseModel):
    """A city; any other field may follow."""

    model_config = {"extra": "allow"}
    name: str


class Place(BaseModel):
    """A place, whose schema has a strict form."""

    name: str


@pytest.mark.parametrize(
    ("rules", "answer", "sent"),
    [
        ({}, Place, (True, True)),
        ({"schema_with_stream": False}, Place, (True, False)),
        ({"schema_with_stream": False, "json_schema": False}, Place, (False, True)),
        ({"strict_schema": True}, Place, (True, True)),
        ({"strict_schema": True}, City, (False, True)),
    ],
)
async def test_the_schema_of_an_answer_is_sent_as_the_endpoint_takes_it(
    openai_stub: StubFactory, rules: dict[str, Any], answer: type[BaseModel], sent: tuple[bool, bool]
) -> None:
    stub = openai_stub('{"name": "Rome"}')
    config = LoopConfig(model_rules={"*": {"json_schema": True, **rules}})
    async with stub.chat_model() as model:
        agent = create_graph_agent(model, response_format=answer, config=config, checkpointer=InMemorySaver())
        result = await Session(agent, "s1").run("Where?")

    found = [("response_format" in body, bool(body.get("stream"))) for body in stub.bodies]
    assert (result.structured_response, found) == (answer(name="Rome"), [sent])


@pytest.mark.parametrize("strict", [False, True])
async def test_a_plan_has_a_tool_where_a_schema_must_be_strict(openai_stub: StubFactory, *, strict: bool) -> None:
    stub = openai_stub('{"status": "done", "tools": [], "answer": "Hello."}')
    rules = {"*": {"json_schema": True, "strict_schema": strict}}
    async with stub.chat_model() as model:
        config = LoopConfig(tool_calling="wave", model_rules=rules)
        agent = create_graph_agent(model, tools=[echo], config=config, checkpointer=InMemorySaver())
        answer = (await Session(agent, "s1").run("Hi")).answer

    sent = [("response_format" in body, "tools" in body) for body in stub.bodies]
    assert (answer, sent) == ("Hello.", [(not strict, strict)])
