"""JSON schemas of replies and plans that are built from the tools of a request."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from graph_agent.models.wire.toolbox_schema import plan_schema, reply_schema, text_answer_schema
from graph_agent.waves import PlanningResult

VALUES: dict[str, tuple[dict[str, Any], st.SearchStrategy[Any]]] = {
    "string": ({"type": "string", "format": "email", "pattern": "x*"}, st.text(max_size=5)),
    "integer": ({"type": "INTEGER"}, st.integers()),
    "number": ({"type": "number"}, st.integers() | st.floats(allow_nan=False, allow_infinity=False)),
    "optional": ({"type": ["boolean", "null"]}, st.booleans() | st.none()),
    "choice": ({"enum": ["a", "b", 3]}, st.sampled_from(["a", "b", 3])),
    "fixed": ({"const": {"deep": [1]}}, st.just({"deep": [1]})),
    "list": ({"type": "array", "items": {"type": "string"}}, st.lists(st.text(max_size=3), max_size=3)),
    "either": ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, st.integers() | st.text(max_size=3)),
    "any": ({}, st.none() | st.booleans() | st.lists(st.integers(), max_size=2)),
    "open": ({"type": "object"}, st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)),
    "map": (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    ),
    "object or null": (
        {"type": ["object", "null"], "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        st.none() | st.fixed_dictionaries({"n": st.integers()}),
    ),
    "tree": ({"$ref": "#/$defs/Tree"}, st.just({"children": [{"children": []}]})),
}
TREE = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}


@st.composite
def toolboxes(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[tuple[str, dict[str, Any]]]]:
    """Tools with random arguments, and right calls of some of them."""
    tools, calls = list[dict[str, Any]](), list[tuple[str, dict[str, Any]]]()
    for number in range(draw(st.integers(1, 4))):
        kinds = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=4, unique=True))
        required = draw(st.lists(st.sampled_from(kinds), unique=True)) if kinds else []
        name = f"tool.{number}"
        parameters = {
            "type": "object",
            "properties": {kind: VALUES[kind][0] for kind in kinds},
            "required": required,
            "$defs": {"Tree": TREE},
        }
        tools.append({"type": "function", "function": {"name": name, "parameters": parameters}})
        given_ones = [kind for kind in kinds if kind in required or draw(st.booleans())]
        calls.append((name, {kind: draw(VALUES[kind][1]) for kind in given_ones}))
    return tools, draw(st.lists(st.sampled_from(calls), min_size=1, max_size=4))


def is_valid(schema: dict[str, Any], value: Any) -> bool:
    Draft202012Validator.check_schema(schema)
    return bool(Draft202012Validator(schema).is_valid(value))


def reply_of(calls: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}


def plan_of(calls: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    tools = [{"id": str(at), "tool": name, "args": arguments} for at, (name, arguments) in enumerate(calls)]
    return {"status": "continue", "tools": tools, "reasoning": "Because."}


@given(toolbox=toolboxes())
def test_a_reply_schema_accepts_right_calls_and_answers_and_no_unknown_tool(toolbox: Any) -> None:
    tools, calls = toolbox

    schema = reply_schema(tools, answer=text_answer_schema())

    accepted = [reply_of(calls), {"answer": "Hello."}]
    refused = [reply_of([("unknown", {})]), reply_of([]), {}, {"answer": 1}, {**reply_of(calls), "answer": ""}]
    assert [is_valid(schema, value) for value in [*accepted, *refused]] == [True] * 2 + [False] * 5


@given(toolbox=toolboxes())
def test_a_plan_schema_accepts_right_plans_and_references_and_no_unknown_tool(toolbox: Any) -> None:
    tools, calls = toolbox
    by_reference = [(name, dict.fromkeys(arguments, "${a.b[0]}")) for name, arguments in calls]

    schema = plan_schema(PlanningResult.model_json_schema(), tools)

    accepted = [plan_of(calls), plan_of(by_reference), {"status": "done", "tools": [], "answer": "Hello."}]
    refused = [plan_of([("unknown", {})]), {"status": "done"}, {"tools": []}]
    assert [is_valid(schema, value) for value in [*accepted, *refused]] == [True] * 3 + [False] * 3


@given(toolbox=toolboxes())
def test_a_bounded_plan_schema_accepts_right_plans_and_ends_each_text_but_the_answer(toolbox: Any) -> None:
    tools, calls = toolbox
    right = {**plan_of(calls), "action": "a" * 64, "answer": "a" * 1000}
    call = {"id": "1", "tool": calls[0][0], "args": calls[0][1], "needs": ["0"]}

    schema = plan_schema(PlanningResult.model_json_schema(), tools, bounded=True)

    refused: list[dict[str, Any]] = [
        {"reasoning": "a" * 200},
        {"action": "a" * 65},
        {"slots": {"a": 1}},
        {"tools": [call] * 17},
    ]
    refused += [
        {"tools": [{**call, name: value}]} for name, value in (("id", "a b"), ("id", "a" * 33), ("needs", [""]))
    ]
    accepted = [right, {**right, "tools": [call]}]
    assert [is_valid(schema, value) for value in accepted] == [True] * len(accepted)
    assert [is_valid(schema, {**right, **wrong}) for wrong in refused] == [False] * len(refused)


@given(toolbox=toolboxes())
def test_equal_tools_have_equal_schemas(toolbox: Any) -> None:
    tools, _ = toolbox

    assert repr(reply_schema(tools, answer=None)) == repr(reply_schema([*tools], answer=None))


def tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.mark.parametrize(
    ("required", "accepted"),
    [
        pytest.param(None, [True, True, True], id="free"),
        pytest.param("any", [True, True, False], id="any"),
        pytest.param("b", [False, True, False], id="named"),
    ],
)
def test_a_tool_choice_limits_the_reply(required: str | None, accepted: list[bool]) -> None:
    schema = reply_schema([tool("a", {}), tool("b", {})], answer=text_answer_schema(), required=required)

    replies = [reply_of([("a", {})]), reply_of([("b", {})]), {"answer": "Hello."}]
    assert [is_valid(schema, reply) for reply in replies] == accepted


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param(None, id="none"),
        pytest.param({"type": "object", "properties": None}, id="no properties"),
        pytest.param({"properties": {"x": True}, "required": "x"}, id="boolean schema"),
        pytest.param({"anyOf": [{"type": "object", "properties": {"x": {"type": "integer"}}}]}, id="union"),
        pytest.param({"type": "object", "properties": {"x": {"$ref": "#/nowhere"}}}, id="dangling reference"),
        pytest.param({"type": "object", "properties": {"x": {"$ref": "#/properties/x"}}}, id="circular reference"),
        pytest.param({"allOf": [{"properties": {"x": {}}}], "properties": {"y": {}}}, id="intersection"),
    ],
)
def test_a_damaged_schema_of_a_tool_still_gives_a_schema(parameters: Any) -> None:
    schema = reply_schema([tool("a", parameters)], answer=text_answer_schema())

    assert [is_valid(schema, reply_of([(name, {"x": 1})])) for name in "ab"] == [True, False]
