"""The parameters of tools reach providers in a form that all of them accept, whatever a server publishes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.models.wire.schemas import fold_schema
from tests.support.agents import echo
from tests.support.openai_stub import Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]

TEXT = {"type": "string"}


def an_object(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


PAGE = an_object("page_id", "kind", page_id=TEXT, kind={"const": "page"})
DATABASE = an_object("database_id", "kind", database_id=TEXT, kind={"const": "database"})


@pytest.mark.parametrize(
    ("published", "offered"),
    [
        (
            {"type": "object", "oneOf": [PAGE, DATABASE]},
            an_object("kind", page_id=TEXT, kind={"enum": ["page", "database"]}, database_id=TEXT),
        ),
        (
            {**an_object("a", a=TEXT), "anyOf": [{"required": ["b"]}, {"required": ["c"]}]},
            an_object("a", a=TEXT),
        ),
        ({"anyOf": [TEXT, an_object("a", a={"type": "int"})]}, an_object("a", a={"type": "integer"})),
        (
            {"anyOf": [an_object(a=TEXT), an_object(a={"type": "integer"})]},
            an_object(a={"anyOf": [TEXT, {"type": "integer"}]}),
        ),
        ({"allOf": [an_object("a", a=TEXT), an_object("b", b=TEXT)]}, an_object("a", "b", a=TEXT, b=TEXT)),
        ({"type": "object", "properties": None}, an_object()),
        ({"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}, an_object(a=TEXT)),
        ({"type": ["object", "null"], "properties": {}}, an_object()),
        (
            {"type": "object", "properties": {"a": "string", "b": None, "c": True, "d": False, "e": {"type": "any"}}},
            an_object(a=TEXT, b={}, c={}, e={}),
        ),
        (an_object("b", a={**TEXT, "required": True}), an_object("a", a=TEXT)),
        (an_object(a={"$ref": "#/$defs/Missing"}, b={"$ref": "https://elsewhere"}), an_object(a={}, b={})),
        (
            an_object(a={"type": "array", "items": [TEXT, TEXT], "minItems": -1, "uniqueItems": None}),
            an_object(a={"type": "array", "items": {"anyOf": [TEXT, TEXT]}}),
        ),
        (an_object(a={**TEXT, "pattern": "((", "enum": []}, b={"exclusiveMinimum": True}), an_object(a=TEXT, b={})),
        ({"$schema": "https://json-schema.org/draft-07/schema", **an_object(a=TEXT)}, an_object(a=TEXT)),
        (None, an_object()),
        ({}, an_object()),
    ],
)
def test_a_schema_is_offered_as_one_valid_object(published: Any, offered: dict[str, Any]) -> None:
    folded = fold_schema(published)

    assert folded is not None
    assert (folded.parameters, folded.names) == (offered, {})


def test_a_reference_at_the_root_is_followed() -> None:
    node = an_object("next", next={"$ref": "#/$defs/Node"})

    folded = fold_schema({"$ref": "#/$defs/Node", "$defs": {"Node": node}})

    assert folded is not None
    assert folded.parameters == {**node, "$defs": {"Node": node}}


@pytest.mark.parametrize(
    "published", [False, {"type": "array"}, {"anyOf": [TEXT, {"type": "null"}]}, {"anyOf": [{"$ref": "#"}]}]
)
def test_a_schema_that_fits_no_object_is_not_offered(published: Any) -> None:
    assert fold_schema(published) is None


def test_a_schema_that_providers_accept_stays_the_same_object() -> None:
    published = an_object("a", a={**TEXT, "x-unit": "m"}, b={"anyOf": [TEXT, {"type": "null"}], "default": None})

    folded = fold_schema(published)

    assert folded is not None
    assert folded.parameters is published


def test_a_provider_that_takes_them_gets_alternatives_and_any_name() -> None:
    published = {"type": "object", "properties": {"$filter": TEXT}, "anyOf": [{"required": ["$filter"]}]}

    folded = fold_schema(published, root_combinators=True, free_keys=True)

    assert folded is not None
    assert folded.parameters is published


def test_names_that_providers_refuse_are_replaced_and_come_back() -> None:
    published = an_object("$filter", **{"$filter": TEXT, "_filter": TEXT, "of": an_object("a b", **{"a b": TEXT})})

    folded = fold_schema(published)

    assert folded is not None
    inner = an_object("a_b", a_b=TEXT)
    given = {"_filter_2": "x", "_filter": "y", "of": [{"a_b": "z"}]}
    assert (folded.parameters, folded.restored(given)) == (
        an_object("_filter_2", _filter_2=TEXT, _filter=TEXT, of=inner),
        {"$filter": "x", "_filter": "y", "of": [{"a b": "z"}]},
    )


KEYWORDS = ("type", "properties", "required", "items", "anyOf", "oneOf", "allOf", "enum", "$ref", "$defs", "minimum")
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.sampled_from(["object", "string", "INT", "#", "#/$defs/a", "$x"])
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*KEYWORDS, "a", "$x", "if", "then"]), inner, max_size=4)
    ),
    max_leaves=25,
)


def property_names(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for each in node:
            yield from property_names(each)
    if isinstance(node, dict):
        if isinstance(properties := node.get("properties"), dict):
            yield from properties
        for each in node.values():
            yield from property_names(each)


@given(ANYTHING)
def test_whatever_is_published_becomes_a_valid_object_or_is_not_offered(published: Any) -> None:
    before = json.dumps(published)

    folded = fold_schema(published)

    assert json.dumps(published) == before
    if folded is not None:
        schema = folded.parameters
        Draft202012Validator.check_schema(schema)
        assert (schema["type"], isinstance(schema["properties"], dict)) == ("object", True)
        assert not schema.keys() & {"anyOf", "oneOf", "allOf", "not", "if", "enum", "const"}
        assert all(re.fullmatch("[a-zA-Z0-9_.-]{1,64}", name) for name in schema["properties"])


VALUES = st.sampled_from([TEXT, {"type": "integer"}, {"const": 1}, {"const": "x"}, {"enum": [1, "y"]}, {}])
# Each alternative describes every property: one that it leaves out could have any value there.
FIELDS = st.fixed_dictionaries({"a": VALUES, "b": VALUES, "c": VALUES})
OBJECTS = FIELDS.flatmap(
    lambda fields: st.builds(
        lambda required: {"type": "object", "properties": fields, "required": required},
        st.lists(st.sampled_from("abc"), unique=True, max_size=2),
    )
)
ALTERNATIVES = st.builds(
    lambda base, keyword, branches: {**base, keyword: branches},
    OBJECTS,
    st.sampled_from(["anyOf", "oneOf"]),
    st.lists(OBJECTS | st.sampled_from([TEXT]), min_size=1, max_size=3),
)
ARGUMENTS = st.dictionaries(st.sampled_from("abc"), st.sampled_from([1, 2, "x", "y", None]), max_size=3)


@given(ALTERNATIVES, ARGUMENTS)
def test_arguments_that_fit_the_published_schema_fit_the_offered_one(published: Any, arguments: Any) -> None:
    folded = fold_schema(published)

    if Draft202012Validator(published).is_valid(arguments):
        assert folded is not None
        assert Draft202012Validator(folded.parameters).is_valid(arguments)


def published_tool(name: str, schema: Any) -> StructuredTool:
    async def call(**arguments: Any) -> str:
        return json.dumps(arguments)

    return StructuredTool(name=name, description="A tool of a server.", args_schema=schema, coroutine=call)


async def test_a_call_has_the_names_of_the_server(openai_stub: StubFactory) -> None:
    tool = published_tool(
        "list", {"type": "object", "properties": {"$filter": TEXT}, "anyOf": [{"required": ["$filter"]}]}
    )
    stub = openai_stub(Reply(tool_calls=(("list", {"_filter": "name eq 'x'"}),)), "Done.")
    async with stub.chat_model() as model:
        talk = Session(create_graph_agent(model, tools=[tool], checkpointer=InMemorySaver()), "s1")
        result = await talk.run("go")

    sent = stub.bodies[0]["tools"][0]["function"]["parameters"]
    assert (sent, result.answer, [call.arguments for call in result.calls]) == (
        an_object("_filter", _filter=TEXT),
        "Done.",
        [{"$filter": "name eq 'x'"}],
    )


async def test_an_endpoint_that_takes_any_schema_may_still_refuse_numbers_in_an_enum() -> None:
    tool = published_tool("list", an_object(size={"type": "integer", "enum": [1, 2]}))
    model = ScriptedChatModel(["Hello."])
    config = LoopConfig(model_rules={"*": {"text_enums": True}})

    await Session(create_graph_agent(model, tools=[tool], config=config, checkpointer=InMemorySaver()), "s1").run("go")

    sent = model.requests[0].tools[0]["function"]["parameters"]
    assert sent == an_object(size={"type": "integer", "description": "One of 1, 2."})


async def test_a_tool_that_cannot_be_offered_is_named_and_the_others_work(openai_stub: StubFactory) -> None:
    bad = published_tool("bad", {"type": "array", "properties": {}})
    loose = published_tool("loose", an_object(a={"$ref": "#/$defs/Missing"}))
    stub = openai_stub("Hello.")
    async with stub.chat_model() as model:
        talk = Session(create_graph_agent(model, tools=[bad, loose, echo], checkpointer=InMemorySaver()), "s1")
        result = await talk.run("go")

    warnings = [event["message"] for event in await talk.events() if event["type"] == "warning"]
    assert (result.answer, [tool["function"]["name"] for tool in stub.bodies[0]["tools"]], warnings) == (
        "Hello.",
        ["loose", "echo"],
        ["The tool 'bad' is not offered to the model: no object fits its schema."],
    )
