"""`TestModel`: an agent's tools are called without a script, in each mode."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from graph_agent import GraphDelegate, LoopConfig, Session, create_graph_agent
from graph_agent.errors import ScriptError
from graph_agent.testing import ScriptedChatModel, TestModel


class Forecast(BaseModel):
    city: str
    sky: Literal["clear", "rain"]


def weather(city: str, days: int = 3) -> str:
    """Return the weather.

    ## Example

    weather("Bergen")
    """
    return f"It rains in {city} for {days} days."


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


CALLS = [
    ("weather", {"city": "city"}, "success"),
    ("add", {"a": 1, "b": 1}, "success"),
    ("delegate_to_helper", {"task": "task"}, "success"),
]


@pytest.mark.parametrize("finalize", ["auto", "compose", "direct"])
@pytest.mark.parametrize("mode", ["native", "text", "wave"])
async def test_each_tool_is_called_once_per_input_in_each_mode(mode: Any, finalize: Any) -> None:
    config = LoopConfig(tool_calling=mode, finalize=finalize)
    helper = GraphDelegate("helper", "Helps.", create_graph_agent(TestModel(), tools=[add], config=config))
    model = TestModel()
    agent = create_graph_agent(
        model, tools=[weather, add], delegates=[helper], config=config, checkpointer=InMemorySaver()
    )
    session = Session(agent, "s1")

    first, second = await session.run("Hello"), await session.run("Again")

    ids = [[call.id for call in result.calls] for result in (first, second)]
    assert ([(call.name, call.arguments, call.status) for call in first.calls], ids, first.answer, second.answer) == (
        CALLS,
        [["call_1", "call_2", "call_3"], ["call_4", "call_5", "call_6"]],
        "weather: It rains in city for 3 days.\nadd: 2\ndelegate_to_helper: add: 2",
        first.answer,
    )
    assert (first.iterations, len(model.requests)) == (1, 6 if finalize == "compose" else 4)


@pytest.mark.parametrize("finalize", ["auto", "compose", "direct"])
@pytest.mark.parametrize("mode", ["native", "text", "wave"])
async def test_the_answer_matches_the_response_format(mode: Any, finalize: Any) -> None:
    config = LoopConfig(tool_calling=mode, finalize=finalize)
    agent = create_graph_agent(
        TestModel(), tools=[add], response_format=Forecast, config=config, checkpointer=InMemorySaver()
    )

    result = await Session(agent, "s1").run("Hello")

    assert (result.structured_response, len(result.calls)) == (Forecast(city="city", sky="clear"), 1)


async def test_calls_arguments_and_answer_can_be_given() -> None:
    model = TestModel(call_tools=["add"], arguments={"add": {"a": 2, "b": 3}}, answer="Done.")
    agent = create_graph_agent(model, tools=[weather, add], checkpointer=InMemorySaver())

    result = await Session(agent, "s1").run("Hello")

    assert (result.results, result.answer) == ({"call_1": 5}, "Done.")


async def test_a_tool_that_is_not_offered_is_named() -> None:
    agent = create_graph_agent(TestModel(call_tools=["ad"]), tools=[add], checkpointer=InMemorySaver())

    with pytest.raises(ScriptError, match=r"TestModel\(call_tools=…\) names \['ad'\]; the request offers \['add'\]"):
        await Session(agent, "s1").run("Hello")


async def test_an_agent_without_tools_is_answered() -> None:
    agent = create_graph_agent(TestModel(), checkpointer=InMemorySaver())

    assert (await Session(agent, "s1").run("Hello")).answer == "No tool was called."


def test_structured_output_without_an_agent_matches_its_schema() -> None:
    for method in ("json_schema", "function_calling"):
        model = TestModel().with_structured_output(Forecast, method=method)
        assert model.invoke("Hello") == Forecast(city="city", sky="clear")


@pytest.mark.parametrize(
    "reply",
    [
        {"name": "add", "arguments": {"a": 1, "b": 2}},
        [{"id": "c", "name": "add", "args": {"a": 1, "b": 2}}],
        {"tool_calls": [{"name": "add", "arguments": '{"a": 1, "b": 2}'}], "content": "I add."},
        '{"tool_calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}',
    ],
)
async def test_a_script_takes_calls_as_dicts_and_json(reply: Any) -> None:
    agent = create_graph_agent(ScriptedChatModel([reply, "3"]), tools=[add], checkpointer=InMemorySaver())

    result = await Session(agent, "s1").run("Hello")

    assert ([(call.name, call.result) for call in result.calls], result.answer) == ([("add", 3)], "3")
