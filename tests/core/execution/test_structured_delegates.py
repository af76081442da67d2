"""Structured answers of delegates: over A2A, and to a stream that cannot be retracted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.tasks import TaskUpdater
from a2a.types import Part
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt
from pydantic import BaseModel, Field

from graph_agent import A2ADelegate, ScriptedChatModel, Session, create_graph_agent
from graph_agent.session.results import PlanText, Token
from tests.support.a2a_servers import PlainAgent, answer, serving_ours, serving_plain
from tests.support.agents import asks


class City(BaseModel):
    name: str = Field(alias="cityName")
    people: int


TEXT = '{"cityName": "Paris", "people": 2100000}'
JSON = {"cityName": "Paris", "people": 2_100_000}


async def delegated(url: str) -> tuple[dict[str, Any], str]:
    """The results of an agent that delegates once, and the content of its model's requests."""
    model = ScriptedChatModel([asks(("1", "delegate_to_other", {"task": "Where?"})), "Done."])
    graph = create_graph_agent(model, delegates=[A2ADelegate("other", url)], checkpointer=InMemorySaver())
    result = await Session(graph, "s1").run("go")
    return result.results, model.requests[1].messages[-1].text


async def test_a_structured_answer_of_a_remote_agent_is_the_delegations_value() -> None:
    other = create_graph_agent(ScriptedChatModel([TEXT]), response_format=City, checkpointer=InMemorySaver())
    with serving_ours(other) as url:
        results, content = await delegated(url)

    assert (results, content.count("Paris")) == ({"1": JSON}, 1)


@pytest.mark.parametrize(
    ("parts", "value"),
    [
        ([Part(data=ParseDict(JSON, Value()))], JSON),
        ([Part(text=TEXT), Part(data=ParseDict(JSON, Value()))], JSON),
        ([Part(text="Paris."), Part(data=ParseDict({"people": 5}, Value()))], 'Paris.\n{"people": 5}'),
        ([Part(text=TEXT)], TEXT),
    ],
    ids=["data", "data and its JSON", "data beside words", "JSON as text"],
)
async def test_data_is_the_value_where_an_answer_holds_nothing_else(parts: list[Part], value: Any) -> None:
    async def give(text: str, updater: TaskUpdater, context: RequestContext) -> None:
        await answer(updater, *parts)

    with serving_plain(PlainAgent(give)) as url:
        results, _ = await delegated(url)

    assert results == {"1": value}


async def test_the_tokens_of_a_rejected_structured_answer_are_marked_as_replaced() -> None:
    model = ScriptedChatModel(['{"cityName": "Paris"}', TEXT])
    graph = create_graph_agent(model, response_format=City, checkpointer=InMemorySaver())

    parts = [part async for part in Session(graph, "s1").stream("go")]

    replaced = {part.message_id for part in parts if isinstance(part, PlanText)}
    answer = [part.text for part in parts if isinstance(part, Token) and part.message_id not in replaced]
    assert "".join(answer) == TEXT


EXACT = {"big": 2**63 + 1, "negative": -(2**53) - 1, "nested": [{"n": 2**60}, 3], "float": 2.0, "text": "1"}


class Exact(BaseModel):
    big: int
    negative: int
    nested: list[Any]
    float: Any
    text: str


async def test_the_integers_of_a_remote_answer_are_exact() -> None:
    other = create_graph_agent(
        ScriptedChatModel([json.dumps(EXACT)]), response_format=Exact, checkpointer=InMemorySaver()
    )
    with serving_ours(other) as url:
        results, _ = await delegated(url)

    assert json.dumps(results["1"], sort_keys=True) == json.dumps(EXACT, sort_keys=True)


async def test_the_integers_of_an_answer_to_a_remote_question_are_exact() -> None:
    received: list[Any] = []

    @tool
    def ask() -> str:
        """Ask."""
        received.append(interrupt({"question": "How many?", "choices": [2**63 + 1]}))
        return "asked"

    other = create_graph_agent(
        ScriptedChatModel([asks(("1", "ask", {})), "No more actions.", "Asked."]),
        tools=[ask],
        checkpointer=InMemorySaver(),
    )
    model = ScriptedChatModel([asks(("1", "delegate_to_other", {"task": "Ask."})), "Done."])
    with serving_ours(other) as url:
        graph = create_graph_agent(model, delegates=[A2ADelegate("other", url)], checkpointer=InMemorySaver())
        session = Session(graph, "s1")
        waiting = await session.run("go")
        await session.resume(EXACT)

    question = waiting.interrupts[0].value["question"]
    assert (json.dumps(received, sort_keys=True), question) == (
        json.dumps([EXACT], sort_keys=True),
        'How many?\n{"choices": [9223372036854775809], "question": "How many?"}',
    )
