"""Structured answers of delegates: over A2A, and to a stream that cannot be retracted."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.tasks import TaskUpdater
from a2a.types import Part
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel, Field

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.a2a.delegate import A2ADelegate
from graph_agent.runs.run import RUN, RunScope
from tests.support.a2a_servers import PlainAgent, answer, serving_ours, serving_plain
from tests.support.agents import asks, says


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


async def test_a_delegates_structured_answer_is_not_streamed_before_validation() -> None:
    tokens: list[str] = []

    async def read(text: str, message_id: str | None) -> None:
        tokens.append(text)

    around = RunScope()
    around.reader = read
    model = ScriptedChatModel(['{"cityName": "Paris"}', TEXT])
    graph = create_graph_agent(model, response_format=City)

    config: Any = {"configurable": {RUN: around}}
    result = await graph.ainvoke(says("go"), config)

    assert (tokens, result["structured_response"]) == ([], JSON)
