"""Client-supplied JSON schemas: validation agrees with jsonschema, in bounded time."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from referencing import Registry

from graph_agent.base._internal.json_schema import SchemaCheck
from graph_agent.base.settings.response_format import ResponseSchema
from graph_agent.errors import ConfigError, SlowSchemaError

_HOPELESS = r"^(([a-z])+.)+[A-Z]([a-z])+$"
_LONG = "a" * 5000
_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_patterns = st.sampled_from(["^a", "b$", "[ab]{2}", "^$", r"\d", "a|b"])
_words = st.text("ab1", max_size=4)
_values = st.recursive(
    st.none() | st.integers(-2, 2) | _words, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_words, inner)
)
_schemas = st.recursive(
    st.booleans()
    | st.builds(lambda pattern: {"pattern": pattern}, _patterns)
    | st.builds(lambda type_: {"type": type_}, st.sampled_from(["string", "integer", "object", "array", "null"])),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(_words, inner, max_size=2),
            "patternProperties": st.dictionaries(_patterns, inner, max_size=2),
            "additionalProperties": inner,
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
        },
    ),
)


@given(schema=_schemas.filter(lambda schema: isinstance(schema, dict)), value=_values)
def test_validation_agrees_with_jsonschema(schema: dict[str, Any], value: Any) -> None:
    try:
        SchemaCheck(schema)(value)
    except jsonschema.ValidationError:
        fits = False
    else:
        fits = True

    assert fits == jsonschema.Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ([1, True, "1", [1], {"a": 1}, None], True),
        ([1, 1.0], False),
        ([0.5, -0.0, 0], False),
        ([{"a": 1, "b": [2.0]}, {"b": [2], "a": 1}], False),
        ([[], {}, "", False, 0], True),
        ([{"n": i} for i in range(20_000)], True),
    ],
)
def test_unique_items_are_checked_by_the_standard_in_one_pass(value: Any, fits: bool) -> None:
    try:
        SchemaCheck({"uniqueItems": True})(value)
    except jsonschema.ValidationError:
        fit = False
    else:
        fit = True

    assert fit == fits


def _doubling(levels: int) -> dict[str, Any]:
    names = {f"l{i}": {"allOf": [{"$ref": f"#/$defs/l{i + 1}"}] * 2} for i in range(levels)}
    return {"$defs": {**names, f"l{levels}": {"type": "string"}}, "$ref": "#/$defs/l0"}


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ({"pattern": _HOPELESS}, _LONG, "without a repeat inside a repeat"),
        ({"patternProperties": {_HOPELESS: {}}}, {_LONG: 1}, "without a repeat inside a repeat"),
        ({"patternProperties": {_HOPELESS: {}}, "additionalProperties": False}, {_LONG: 1}, "inside a repeat"),
        ({"$schema": _DIALECT, "items": {"$schema": _DIALECT, "pattern": _HOPELESS}}, [_LONG], "inside a repeat"),
        (
            {"$schema": _DIALECT, "items": {"$ref": "#/$defs/x"}, "$defs": {"x": {"pattern": _HOPELESS}}},
            [_LONG],
            "insi",
        ),
        ({"properties": {"const": {"$schema": _DIALECT, "pattern": _HOPELESS}}}, {"const": _LONG}, "inside a repeat"),
        (_doubling(60), "x", "longer than 2 seconds"),
    ],
)
def test_an_unbounded_validation_is_abandoned(schema: dict[str, Any], value: Any, reason: str) -> None:
    with pytest.raises(SlowSchemaError) as error:
        SchemaCheck(schema)(value)

    assert reason in str(error.value)


def test_a_pattern_where_no_schema_should_be_is_no_larger() -> None:
    with pytest.raises(SlowSchemaError, match="come to"):
        SchemaCheck({"$ref": "#/default", "default": {"pattern": "(?:ab){99999}"}})("ab")


def test_patterns_are_not_compiled_and_anchors_are_crawled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_, crawl = re.compile, Registry.crawl
    compiled: list[Any] = []
    crawls: list[int] = []

    def compiling(pattern: Any, *flags: Any) -> Any:
        compiled.append(pattern)
        return compile_(pattern, *flags)

    def crawling(registry: Registry[Any]) -> Any:
        crawls.append(len(registry))
        return crawl(registry)

    monkeypatch.setattr(re, "compile", compiling)
    monkeypatch.setattr(Registry, "crawl", crawling)
    # Python takes some milliseconds for each such set.
    slow = "(?i)[\u0100-\U0010ffff]"

    SchemaCheck({"$anchor": "a", "pattern": slow, "allOf": [{"$ref": "#a"}] * 100})

    assert (slow in compiled, len(crawls)) == (False, 1)


def test_a_schema_without_end_is_a_reply_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        ResponseSchema({"$ref": "#"}).read('{"a": 1}')


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "("},
        {"pattern": "(" * 3000 + ")" * 3000},
        {"pattern": "a{99999999999999}"},
        {"pattern": "(?:(?:a{300}){300}){300}"},
        {"pattern": "[ab]{99999,}|(?=c){9}"},
        {"pattern": "(?x)a{ 99999 }"},
        {"patternProperties": {"^(?:ab){99999}": True}},
        {"unevaluatedProperties": False, "allOf": [{"patternProperties": {"^a": True}}]},
        {"properties": {"a": {"$ref": "#/$defs/none"}}, "$defs": {"some": {}}},
        {"allOf": [{"$ref": "#/allOf/1"}]},
        {"$ref": "#nowhere", "$defs": {"some": {"$anchor": "somewhere"}}},
        {"properties": {"default": {"$dynamicRef": "#nowhere"}}},
        {"$ref": "http://127.0.0.1:9/elsewhere"},
        {"$id": "http://[x"},
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_at_once(schema: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="response_format"):
        SchemaCheck(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {}}},
        {"$id": "http://127.0.0.1:9/x", "properties": {"$ref": {"$ref": "#/$defs/a"}}, "$defs": {"a": {}}},
        {
            "$ref": "#/definitions/a",
            "definitions": {"a": {"$id": "a", "$ref": "#/definitions/b", "definitions": {"b": {}}}},
        },
        {"const": {"$ref": "#/none"}},
        {"default": {"$ref": "#none"}, "$ref": "#here", "$defs": {"a": {"$anchor": "here"}}},
        {"$dynamicRef": "#here", "$defs": {"a": {"$dynamicAnchor": "here"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "$dynamicRef": "#what-it-does-not-know"},
    ],
)
def test_references_that_lead_somewhere_are_followed(schema: dict[str, Any]) -> None:
    check = SchemaCheck(schema)

    check({"$ref": "#/none"})


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"type": "object"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    ],
)
def test_a_schema_that_refers_to_itself_is_a_reason_and_no_exception(schema: dict[str, Any]) -> None:
    why = SchemaCheck(schema).misfit({"sure": True})

    assert why == "its schema refers to itself without an end, so that nothing fits it"
