"""Calls, results and examples in the text of a request."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.tool import tool_call

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.base.input_messages import EXAMPLE_ID
from graph_agent.calls import parse_tool_calls
from graph_agent.models.wire.examples import echoed_values, example_plans, example_turns, with_examples
from graph_agent.models.wire.text_form import as_plans, as_text_history
from graph_agent.waves import PlanningResult
from tests.support.agents import add, asks, echo, says

RANDOM_ID = "call_0123456789abcdef0123456789abcdef"


def called(*ids: str) -> list[Any]:
    """A message of calls of `echo`, and their results."""
    calls = [tool_call(id=id_, name="echo", args={"text": id_[-1]}) for id_ in ids]
    results = [ToolMessage(f"It says {id_[-1]}.", tool_call_id=id_, name="echo") for id_ in ids]
    return [AIMessage("", tool_calls=calls), *results]


def test_calls_and_results_have_no_ids() -> None:
    failed = ToolMessage("No.", tool_call_id="c", name="echo", status="error")
    history = [*called(RANDOM_ID), *called("a", "b"), *called("c")[:1], failed]

    texts = [str(message.text) for message in as_text_history(history)]

    assert texts == [
        '{"tool_calls": [{"name": "echo", "arguments": {"text": "f"}}]}',
        '<tool_result name="echo">\nIt says f.\n</tool_result>',
        '{"tool_calls": [{"name": "echo", "arguments": {"text": "a"}}, {"name": "echo", "arguments": {"text": "b"}}]}',
        '<tool_result call="1" name="echo">\nIt says a.\n</tool_result>\n'
        '<tool_result call="2" name="echo">\nIt says b.\n</tool_result>',
        '{"tool_calls": [{"name": "echo", "arguments": {"text": "c"}}]}',
        '<tool_result name="echo" status="error">\nNo.\n</tool_result>',
    ]


@given(waves=st.lists(st.integers(1, 3), min_size=1, max_size=6), begin=st.integers(0, 5))
def test_a_shortened_history_has_the_same_texts(waves: list[int], begin: int) -> None:
    turns = [called(*(f"{number}{place}" for place in range(count))) for number, count in enumerate(waves)]
    history = [message for turn in turns for message in turn]
    shorter = [message for turn in turns[begin:] for message in turn]

    whole, rest = as_text_history(history), as_text_history(shorter)

    assert [message.text for message in whole[len(whole) - len(rest) :]] == [message.text for message in rest]


def test_plans_have_a_status() -> None:
    done = AIMessage("Why.", tool_calls=[tool_call(id="b", name="echo", args={})])
    done.response_metadata["plan_status"] = "done"

    plans = [json.loads(message.text) for message in as_plans([*called("a")[:1], done])]

    assert [plan["status"] for plan in plans] == ["continue", "done"]


def tool(name: str, fields: dict[str, Any], description: str = "Do it.") -> dict[str, Any]:
    parameters = {"type": "object", "properties": fields, "required": list(fields)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def test_examples_are_built_from_the_schemas_of_the_tools() -> None:
    fields = {
        "text": {"type": "string"},
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 3},
        "lang": {"type": "string", "default": "en"},
        "where": {
            "type": "object",
            "properties": {"zip": {"type": "string", "examples": ["5003"]}},
            "required": ["zip"],
        },
    }

    turns = example_turns([tool("forecast", fields, "Forecast.\nIn detail.")], "none")

    expected: list[str] = []
    for text, days in (("Elmwood", 3), ("Ashford", 3)):
        arguments = {"text": text, "unit": "C", "days": days, "lang": "en", "where": {"zip": "5003"}}
        expected += [
            f'Forecast. text: {text}, unit: C, days: {days}, lang: en, where: {{"zip": "5003"}}',
            json.dumps({"tool_calls": [{"name": "forecast", "arguments": arguments}]}),
        ]
    assert [turn.text for turn in turns] == expected


def test_examples_share_no_invented_value() -> None:
    fields = {"city": {"type": "string"}, "days": {"type": "integer"}}

    turns = example_turns([tool(name, fields) for name in ("weather", "travel", "local_time")], "none")

    calls = [call for turn in turns[1::2] for call in parse_tool_calls(turn.text, ["weather", "travel", "local_time"])]
    assert [call["arguments"] for call in calls] == [
        {"city": "Elmwood", "days": 2},
        {"city": "Ashford", "days": 3},
        {"city": "Redfern", "days": 4},
    ]


def test_examples_of_an_answer_show_a_result_and_the_answer_alone() -> None:
    turns = example_turns([tool("find", {"name": {"type": "string"}}), tool("stop", {})], "result")

    assert [turn.text for turn in turns] == [
        "Do it. name: Elmwood",
        '{"tool_calls": [{"name": "find", "arguments": {"name": "Elmwood"}}]}',
        '<tool_result name="find">\nexample result\n</tool_result>',
        "The result is: example result",
    ]


@given(count=st.integers(1, 30), answers=st.booleans())
def test_example_plans_are_valid_and_their_calls_differ(count: int, answers: bool) -> None:
    tools = [tool(f"tool_{number}", {"text": {"type": "string"}}) for number in range(count)]

    turns = example_plans(tools, answers=answers)

    plans = [PlanningResult.model_validate_json(turn.text) for turn in turns[1::2]]
    calls = [call.args["text"] for plan in plans for call in plan.tools]
    assert ([turn.type for turn in turns], {plan.status for plan in plans}) == (["human", "ai"] * len(plans), {"done"})
    assert (len(calls), len({*calls}), sum(bool(plan.answer) for plan in plans)) == (
        min(max(count, 2), 6),
        len(calls),
        3 if answers else 0,
    )


@pytest.mark.parametrize("content", ["Be brief.", [{"type": "text", "text": "Be brief."}]], ids=["text", "blocks"])
def test_a_note_on_examples_ends_the_system_prompt(content: Any) -> None:
    examples = example_plans([tool("find", {})], answers=False)

    request = with_examples([SystemMessage(content), HumanMessage("Hello!")], examples, note=True)

    texts = [message.text for message in request]
    begins, is_noted = texts[0].startswith("Be brief."), "no part of the conversation" in texts[0]
    assert (begins, is_noted) == (True, True)
    assert texts[1:] == [*(example.text for example in examples), "Hello!"]


@given(count=st.integers(1, 30), answers=st.sampled_from(["prose", "object", "none", "result", "result object"]))
def test_examples_alternate_and_their_last_call_is_of_an_offered_tool(count: int, answers: Any) -> None:
    tools = [tool(f"tool_{number}", {"text": {"type": "string"}}) for number in range(count)]

    turns = example_turns(tools, answers)

    shown = turns[-3] if answers.startswith("result") else turns[-1]
    last = parse_tool_calls(shown.text, [f"tool_{number}" for number in range(count)])
    assert ([turn.type for turn in turns], len(last), len(turns) <= 20) == (
        ["human", "ai"] * (len(turns) // 2),
        1,
        True,
    )
    assert turns == example_turns(tools, answers)


def test_an_invented_text_of_an_example_is_an_echo() -> None:
    tools = [tool("find", {"name": {"type": "string"}, "unit": {"enum": ["C"]}})]

    echoes = [
        echoed_values(tools, name, arguments)
        for name, arguments in [
            ("find", {"name": "Elmwood", "unit": "C"}),
            ("find", {"name": "Ashford", "unit": "C"}),
            ("find", {"name": "Anna", "unit": "C"}),
            ("other", {"name": "Elmwood"}),
        ]
    ]

    assert echoes == [{"name": "Elmwood"}, {"name": "Ashford"}, {}, {}]


async def test_examples_are_part_of_the_request_alone_and_an_echo_does_not_run() -> None:
    model = ScriptedChatModel([asks(("1", "echo", {"text": "Elmwood"})), "Which text?"])
    graph = create_graph_agent(model, tools=[echo, add], config=LoopConfig(tool_calling="text"))

    result = await graph.ainvoke(says("echo something"))

    examples = [[m for m in request.messages if (m.id or "").startswith(EXAMPLE_ID)] for request in model.requests]
    stored = [(message.type, message.text[:45]) for message in result["messages"]]
    assert (len(examples[0]) > 0, examples[0] == examples[1], stored) == (
        True,
        True,
        [
            ("human", "echo something"),
            ("ai", ""),
            ("tool", "Not run: this is the value of the example (te"),
            ("ai", "Which text?"),
        ],
    )


async def test_a_text_of_the_user_is_no_echo() -> None:
    model = ScriptedChatModel([asks(("1", "echo", {"text": "Elmwood"})), "Done."])
    graph = create_graph_agent(model, tools=[echo, add], config=LoopConfig(tool_calling="text"))

    result = await graph.ainvoke(says("echo Elmwood"))

    assert [m.text for m in result["messages"] if isinstance(m, ToolMessage)] == ["Elmwood"]


async def test_the_examples_follow_the_system_prompt() -> None:
    model = ScriptedChatModel(["Hello."])
    graph = create_graph_agent(model, tools=[add], system_prompt="Be brief.", config=LoopConfig(tool_calling="text"))

    await graph.ainvoke(says("hi"))

    (request,) = model.requests
    kinds = [message.type for message in request.messages]
    assert (kinds[0], kinds[1:-1], request.messages[-1]) == (
        "system",
        ["human", "ai"] * ((len(kinds) - 2) // 2),
        HumanMessage("hi", id=request.messages[-1].id),
    )
