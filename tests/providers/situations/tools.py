"""Tools as published servers have them: odd schemas, and names of each kind."""

from __future__ import annotations

from typing import Any

from langchain_core.tools import StructuredTool

from tests.providers.exchange import Reply, Request
from tests.providers.lab import ANSWER, WEATHER, Lab, called, calls, streamed, weather
from tests.providers.situations import situation

_STRING = {"type": "string"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "plain": {"type": "object", "properties": {"city": _STRING}, "required": ["city"]},
    "any_of_root": {
        "type": "object",
        "properties": {"city": _STRING, "id": _STRING},
        "anyOf": [{"required": ["city"]}, {"required": ["id"]}],
    },
    "one_of_root": {
        "type": "object",
        "oneOf": [
            {"properties": {"city": _STRING}, "required": ["city"]},
            {"properties": {"id": _STRING}, "required": ["id"]},
        ],
    },
    "all_of_root": {"type": "object", "allOf": [{"properties": {"city": _STRING}}, {"properties": {"day": _STRING}}]},
    "without_properties": {"type": "object"},
    "null_properties": {"type": "object", "properties": None},
    "no_type": {"properties": {"city": _STRING}},
    "upper_case": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}},
    "dollar_keys": {"type": "object", "properties": {"$filter": _STRING, "@odata": _STRING, "city": _STRING}},
    "tuple_items": {
        "type": "object",
        "properties": {"pair": {"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}]}},
    },
    "list_without_items": {"type": "object", "properties": {"cities": {"type": "array"}}},
    "list_of_types": {"type": "object", "properties": {"city": {"type": ["string", "null"]}}},
    "definitions": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "https://example.com/place",
        "type": "object",
        "properties": {"place": {"$ref": "#/$defs/place"}},
        "$defs": {"place": {"type": "object", "properties": {"city": _STRING}}},
    },
    "recursive": {
        "type": "object",
        "properties": {"node": {"$ref": "#/$defs/node"}},
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            }
        },
    },
    "open_object": {"type": "object", "properties": {"extra": {"type": "object", "additionalProperties": True}}},
    "constants": {
        "type": "object",
        "properties": {"kind": {"const": "city"}, "unit": {"enum": ["C", "F", None]}, "level": {"enum": [1, 2]}},
    },
    "constraints": {
        "type": "object",
        "properties": {
            "days": {"type": "integer", "minimum": 1, "exclusiveMaximum": 15, "multipleOf": 1},
            "city": {"type": "string", "pattern": "^[A-Z]", "minLength": 1, "format": "city", "default": "Paris"},
        },
        "additionalProperties": False,
    },
    "boolean_schema": {"type": "object", "properties": {"anything": True, "nothing": False}},
    "description_as_schema": {"type": "object", "properties": {"city": "the name of a city"}},
}
NAMES = (
    "db.query",
    "web search",
    "9lives",
    "ünïcode",
    "a" * 80,
    "kebab-case",
    "UPPER_case",
    "path/to/tool",
    "a:b",
    "$dollar",
    "_private",
)


def _tool(name: str, schema: dict[str, Any]) -> StructuredTool:
    async def run(**given: Any) -> str:
        return f"{name} has run."

    return StructuredTool(name=name, description=f"The tool {name}.", args_schema=schema, coroutine=run)


def _offered(request: Request) -> list[str]:
    """The names of the offered tools, as the provider was given them; empty if they are described in the prompt."""
    return [offered.name for offered in request.tools]


@situation("schemas")
async def published_schemas(lab: Lab) -> None:
    """One odd schema does not spoil the others; the first tool is called."""
    session = lab.session(
        calls(("plain", {"city": "Paris"})),
        Reply(ANSWER),
        tools=[_tool(name, schema) for name, schema in SCHEMAS.items()],
    )

    result = await session.run(WEATHER)

    assert (result.answer, list(result.results.values())) == (ANSWER, ["plain has run."])


@situation("names")
async def names_of_each_kind(lab: Lab) -> None:
    """Each tool is called by the name that the provider was given for it."""
    tools = [_tool(name, SCHEMAS["plain"]) for name in NAMES]
    session = lab.session(
        lambda request: calls(*((name, {"city": "Paris"}) for name in _offered(request) or NAMES)),
        Reply(ANSWER),
        Reply("Fine."),
        tools=tools,
    )

    tokens, first = await streamed(session, WEATHER)
    second = await session.run("And now?")

    assert list(first.results.values()) == [f"{name} has run." for name in NAMES]
    assert [first.answer, tokens, second.answer] == [ANSWER, ANSWER, "Fine."]
    assert len(called(lab.requests)) == len(NAMES)


@situation("names")
async def names_of_withdrawn_tools(lab: Lab) -> None:
    """The history has a name that no offered tool has."""
    session = lab.session(
        lambda request: calls(((_offered(request) or ["db.query now"])[0], {"city": "Paris"})),
        Reply(ANSWER),
        tools=[_tool("db.query now", SCHEMAS["plain"])],
        checkpointer=lab.saver,
    )
    first = await session.run(WEATHER)
    later = lab.session(Reply("Fine."), tools=[weather], checkpointer=lab.saver)

    second = await later.run("And now?")

    assert [first.answer, second.answer] == [ANSWER, "Fine."]
