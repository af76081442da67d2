"""Values made from JSON schemas match them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from graph_agent.devtools.model import example_of
from graph_agent.errors import ScriptError

small = st.integers(-20, 20)


def between(low: str, high: str, numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A schema's bounds, of which each may be absent."""
    pairs = st.tuples(numbers, numbers).map(sorted)
    return pairs.flatmap(
        lambda pair: st.sampled_from([{}, {low: pair[0]}, {high: pair[1]}, {low: pair[0], high: pair[1]}])
    )


def typed(kind: str, *parts: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(*parts).map(lambda given: {"type": kind} | {key: each[key] for each in given for key in each})


leaves = st.one_of(
    st.sampled_from(
        [
            {"type": "boolean"},
            {"type": "null"},
            {"type": ["null", "integer"]},
            {"const": {"a": [1]}},
            {"enum": ["b", 2, None]},
            {"type": "string", "examples": ["Bergen"]},
            {"type": "integer", "default": 7},
            {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5},
            {"$ref": "#/$defs/node"},
            {"allOf": [{"$ref": "#/$defs/named"}, {"properties": {"n": {"type": "integer"}}, "required": ["n"]}]},
            {},
            True,
        ]
    ),
    st.sampled_from(["date", "email", "uuid", "uri"]).map(lambda name: {"type": "string", "format": name}),
    typed("string", between("minLength", "maxLength", st.integers(0, 20))),
    typed("integer", between("minimum", "maximum", small)),
    typed("number", between("minimum", "maximum", st.floats(-5, 5, allow_subnormal=False))),
    st.tuples(small, st.integers(1, 9)).map(lambda two: {"type": "integer", "minimum": two[0], "multipleOf": two[1]}),
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    fields = st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
    objects = fields.flatmap(
        lambda fields: st.lists(st.sampled_from([*fields, "e"]), unique=True).map(
            lambda names: {"type": "object", "properties": fields, "required": names}
        )
    )
    arrays = st.tuples(inner, st.integers(0, 3)).map(lambda two: {"type": "array", "items": two[0], "minItems": two[1]})
    sets = st.integers(1, 4).map(
        lambda size: {"type": "array", "items": {"type": "string"}, "minItems": size, "uniqueItems": True}
    )
    pairs = st.tuples(inner, inner).map(
        lambda two: {"type": "array", "prefixItems": list(two), "minItems": 2, "items": False}
    )
    options = st.tuples(inner, inner).map(lambda two: {"anyOf": list(two)})
    mappings = inner.map(lambda one: {"type": "object", "additionalProperties": one, "minProperties": 1})
    return st.one_of(objects, arrays, sets, pairs, options, mappings)


DEFINITIONS = {
    "node": {
        "type": "object",
        "properties": {
            "label": {"type": "string"},
            "left": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            "below": {"type": "array", "items": {"$ref": "#/$defs/node"}},
        },
        "required": ["label", "left", "below"],
    },
    "named": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}


@given(st.dictionaries(st.sampled_from("xyz"), st.recursive(leaves, nested, max_leaves=6), min_size=1))
def test_a_value_matches_its_schema_and_is_the_same_each_time(fields: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": fields, "required": list(fields), "$defs": DEFINITIONS}

    value = example_of(schema)

    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(value)
    assert example_of(schema) == value


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}, {"city": "city"}),
        ({"type": "array", "items": {"type": "string"}}, ["tags"]),
        ({"type": "integer", "minimum": 5}, 5),
        ({"anyOf": [{"type": "null"}, {"type": "string", "format": "date"}]}, "2026-01-01"),
        ({"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$", "description": "A day."}, "2026-01-01"),
    ],
)
def test_a_value_is_the_simplest_one(schema: dict[str, Any], value: Any) -> None:
    assert example_of(schema, "tags") == value


@pytest.mark.parametrize("schema", [{"not": {}}, {"pattern": r"^[A-Z]{2}\d$"}], ids=["nothing fits", "a code"])
def test_a_schema_without_a_value_is_an_error(schema: dict[str, Any]) -> None:
    with pytest.raises(ScriptError, match=r"No value was found for the schema of tags.*TestModel\(arguments="):
        example_of({"type": "string", **schema}, "tags")
