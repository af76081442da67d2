"""Calls in text by a JSON schema of the toolbox, where the model's server takes one."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from langchain.agents.structured_output import ProviderStrategy
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from graph_agent import LoopConfig, Session, create_graph_agent
from graph_agent.session.results import Token
from tests.support.agents import add, echo
from tests.support.openai_stub import Failure, Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]

CALL = json.dumps({"tool_calls": [{"name": "echo", "arguments": {"text": "a"}}]})
ANSWER = json.dumps({"answer": 'It says "a".\nReally.'})
NO_SCHEMA = Failure(400, "json_schema response_format is not supported by this server")
MODEL = "smollm2-135m"


def agent(model: Any, *, response_format: Any = None, **config: Any) -> Session:
    graph = create_graph_agent(
        model,
        tools=[echo, add],
        config=LoopConfig(**config),
        checkpointer=InMemorySaver(),
        response_format=response_format,
    )
    return Session(graph, "s1")


def forms(bodies: list[dict[str, Any]]) -> list[list[str] | None]:
    """The fields that the schema of each request permits at its root; None for a request without a schema."""
    schemas = [(body.get("response_format") or {}).get("json_schema", {}).get("schema") for body in bodies]
    return [
        schema and sorted(key for each in schema.get("anyOf", [schema]) for key in each["properties"])
        for schema in schemas
    ]


async def test_an_unknown_server_is_asked_by_the_schema_of_the_toolbox(openai_stub: StubFactory) -> None:
    stub = openai_stub(CALL, ANSWER)
    async with stub.chat_model(MODEL) as model:
        result = await agent(model).run("Echo a")

    assert (forms(stub.bodies), [body.get("stop") for body in stub.bodies], result.results, result.answer) == (
        [["answer", "tool_calls"]] * 2,
        [None, None],
        {next(iter(result.results)): "a"},
        'It says "a".\nReally.',
    )


async def test_the_text_of_an_answer_by_schema_is_streamed(openai_stub: StubFactory) -> None:
    stub = openai_stub(ANSWER)
    async with stub.chat_model(MODEL) as model:
        session = agent(model)
        tokens = [part.text async for part in session.stream("hi") if isinstance(part, Token)]

    assert (len(tokens) > 1, "".join(tokens)) == (True, 'It says "a".\nReally.')


async def test_a_call_in_an_answer_by_schema_does_not_run(openai_stub: StubFactory) -> None:
    stub = openai_stub(json.dumps({"answer": f"You would write {CALL}"}))
    async with stub.chat_model(MODEL) as model:
        result = await agent(model).run("How do I echo a?")

    assert (result.answer, result.calls) == (f"You would write {CALL}", [])


async def test_a_server_that_refuses_the_schema_is_asked_by_the_prompt_from_then_on(openai_stub: StubFactory) -> None:
    stub = openai_stub(NO_SCHEMA, CALL, "It says a.", "Again.")
    async with stub.chat_model(MODEL) as model:
        session = agent(model)
        first, second = await session.run("Echo a"), await session.run("Again")

    warnings = [event["message"] for event in await session.events() if event["type"] == "warning"]
    assert (forms(stub.bodies), first.answer, second.answer, ["json_schema: false" in text for text in warnings]) == (
        [["answer", "tool_calls"], None, None, None],
        "It says a.",
        "Again.",
        [True],
    )


async def test_a_server_that_ignores_the_schema_is_asked_by_the_prompt_from_then_on(openai_stub: StubFactory) -> None:
    stub = openai_stub("Hello.", "Again.")
    async with stub.chat_model(MODEL) as model:
        session = agent(model)
        first, second = await session.run("hi"), await session.run("Again")

    assert (forms(stub.bodies), first.answer, second.answer) == (
        [["answer", "tool_calls"], None],
        "Hello.",
        "Again.",
    )


@pytest.mark.parametrize(
    ("structured_output", "by_schema"), [("auto", True), ("schema", True), ("prompt", False)], ids=str
)
async def test_the_setting_decides_whether_a_schema_is_sent(
    openai_stub: StubFactory, structured_output: Literal["auto", "schema", "prompt"], by_schema: bool
) -> None:
    stub = openai_stub(ANSWER)
    async with stub.chat_model(MODEL) as model:
        await agent(model, structured_output=structured_output).run("hi")

    assert ["response_format" in body for body in stub.bodies] == [by_schema]


@pytest.mark.parametrize(
    ("config", "reply", "stop", "answer"),
    [
        pytest.param({}, "Hello.", ["<tool_result"], "Hello.", id="own"),
        pytest.param({"stop": ["###"]}, "Hello.", ["###", "<tool_result"], "Hello.", id="user"),
        pytest.param({"stop": list("abcd")}, "Hello.", list("abcd"), "Hello.", id="four"),
        pytest.param(
            {"stop": ["###"], "structured_output": "auto"}, ANSWER, None, 'It says "a".\nReally.', id="schema"
        ),
        pytest.param({"stop": ["\nR"], "structured_output": "auto"}, ANSWER, None, 'It says "a".', id="schema-and-cut"),
        pytest.param({"stop": ["l"], "structured_output": "auto"}, "Hello.", None, "He", id="ignored-schema-and-cut"),
    ],
)
async def test_stop_sequences_in_text_mode(
    openai_stub: StubFactory, config: dict[str, Any], reply: str, stop: list[str] | None, answer: str
) -> None:
    stub = openai_stub(reply)
    async with stub.chat_model(MODEL) as model:
        result = await agent(model, **{"structured_output": "prompt", **config}).run("hi")

    assert ([body.get("stop") for body in stub.bodies], result.answer) == ([stop], answer)


class Weather(BaseModel):
    """The weather."""

    city: str
    degrees: int


FITS = json.dumps({"city": "Bergen", "degrees": 12})


async def test_a_response_format_is_the_answer_of_the_schema(openai_stub: StubFactory) -> None:
    stub = openai_stub(CALL, FITS)
    async with stub.chat_model(MODEL) as model:
        result = await agent(model, response_format=Weather).run("Weather?")

    assert (forms(stub.bodies), result.structured_response) == (
        [["city", "degrees", "tool_calls"]] * 2,
        Weather(city="Bergen", degrees=12),
    )


@pytest.mark.parametrize(
    ("response_format", "sent"), [(Weather, [False]), (ProviderStrategy(Weather), [True])], ids=["plain", "provider"]
)
async def test_a_provider_strategy_is_enforced_with_native_tools(
    openai_stub: StubFactory, response_format: Any, sent: list[bool]
) -> None:
    stub = openai_stub(FITS)
    async with stub.chat_model("unknown-model") as model:
        result = await agent(model, response_format=response_format).run("Weather?")

    assert (["response_format" in body for body in stub.bodies], result.structured_response) == (
        sent,
        Weather(city="Bergen", degrees=12),
    )


async def test_a_plan_that_is_cut_off_is_counted_and_repaired(openai_stub: StubFactory) -> None:
    begun = '{"status": "continue", "tools": [{"id": "a", "tool": "echo", "args": {"text": "'
    stub = openai_stub(Reply(begun, finish="length"), '{"status": "done", "tools": [], "answer": "Hello."}')
    async with stub.chat_model("gpt-4o-mini") as model:
        result = await agent(model, tool_calling="wave", stop=["llo"]).run("hi")

    assert (
        forms(stub.bodies)[0] is not None,
        result.answer,
        result.usage["model_calls"],
        result.usage["input_tokens"],
    ) == (
        True,
        "He",
        2,
        22,
    )
