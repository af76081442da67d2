"""Defines a chat model that needs no script: it calls the tools that it is offered, and reports their results.

The values of its calls match the tools' JSON schemas, and are always the same for the same schema.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, ClassVar, Literal

from jsonschema import Draft202012Validator, ValidationError
from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage

from graph_agent.base._internal.json_schema import SchemaCheck
from graph_agent.base.calls import RESULT_MARKER
from graph_agent.base.errors import ScriptError
from graph_agent.base.input_messages import is_example
from graph_agent.base.tool_names import PLAN_TOOL, alias_of
from graph_agent.models.scripted import ModelScript, ScriptedChatModel, ScriptedRequest, read_object

_MOST_CANDIDATES = 200
"""Maximum values of a schema that are tried."""
_MOST_NESTED = 12
"""Levels at which a schema that refers to itself is given up."""
_DEEP = 2
"""Level below which values are as small as possible."""
_FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T12:00:00Z",
    "duration": "P1D",
    "email": "user@example.com",
    "hostname": "example.com",
    "idn-email": "user@example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "json-pointer": "",
    "time": "12:00:00Z",
    "uri": "https://example.com/",
    "url": "https://example.com/",
    "uri-reference": "/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
"""Format of a string → a text in that format."""
_BY_KEYWORD = {
    "properties": "object",
    "required": "object",
    "items": "array",
    "prefixItems": "array",
    "pattern": "string",
    "minLength": "string",
    "format": "string",
    "minimum": "number",
    "maximum": "number",
    "multipleOf": "number",
}
"""Keyword → type of a schema that has the keyword and names no type."""


def example_of(schema: Mapping[str, Any], name: str = "value") -> Any:
    """Return a value that matches a JSON schema: the default or an example, else the simplest value of its type.

    An object has its required properties, a list the items that it must have, at least one. A string without further
    rules consists of `name`; the properties of an object have their own names. Equal schemas give equal values.

    Raises:
        ConfigError: If the schema, in which local references (`#/…`) are resolved, is invalid.
        ScriptError: If no value was found.
    """
    check = SchemaCheck(dict(schema), name)
    for value in islice(_Values(schema).of(schema, name, 0, 0), _MOST_CANDIDATES):
        with suppress(ValidationError):
            check(value)
            return value
    raise ScriptError(
        f"No value was found for the schema of {name}: {dict(schema)}. Give one, such as "
        "TestModel(arguments={'<tool>': {'<argument>': <value>}})."
    )


class _Values:
    """Generates values that may match a schema, the simplest first; the caller validates them.

    `root` is the whole schema, in which references are resolved.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._check = Draft202012Validator(root, format_checker=Draft202012Validator.FORMAT_CHECKER)

    def of(self, schema: Any, name: str, nth: int, depth: int) -> Iterator[Any]:
        """Yield candidates of a value for a part of the schema, the simplest first.

        If there is a `const`, it is the only one. Otherwise they are the default (for `nth` 0 only), those of `enum` or
        `examples`, those of alternatives (null last), and, without `enum` and alternatives, values of its types, in
        this order.

        Args:
            schema: The part; anything but a mapping yields a text for True, and else nothing.
            name: Name of the value, of which a string consists.
            nth: Index of the value in a list, from 0; the candidates differ by it where they can.
            depth: Number of levels above; nothing is yielded below `_MOST_NESTED`.
        """
        if not isinstance(schema, Mapping) or depth > _MOST_NESTED:
            if schema is True:
                yield name
            return
        schema = self._merged(schema)
        if "const" in schema:
            yield schema["const"]
            return
        # For the first item of a list only, since the items of some lists must differ.
        if nth == 0 and "default" in schema:
            yield schema["default"]
        given = schema.get("enum") or schema.get("examples") or []
        yield from [*given[nth:], *given[:nth]]
        for keyword in ("anyOf", "oneOf"):
            rest = {key: value for key, value in schema.items() if key not in (keyword, "default", "title")}
            # `null` is the last choice, except where a schema may refer to itself.
            options = sorted(
                schema.get(keyword, ()), key=lambda option: (option == {"type": "null"}) != (depth > _DEEP)
            )
            for option in options:
                yield from self.of(_both(rest, option), name, nth, depth + 1)
        if "enum" in schema or "anyOf" in schema or "oneOf" in schema:
            return
        types = schema.get("type") or next((kind for key, kind in _BY_KEYWORD.items() if key in schema), "string")
        for kind in sorted([types] if isinstance(types, str) else types, key=lambda kind: kind == "null"):
            yield from self._of_type(kind, schema, name, nth, depth)

    def _of_type(self, kind: str, schema: Mapping[str, Any], name: str, nth: int, depth: int) -> Iterator[Any]:
        """Yield candidates of one JSON type (`kind`), such as `string`; nothing for an unknown type.

        Args:
            kind: The type.
            schema: The part of the schema.
            name: Name of the value, of which a string consists.
            nth: Index of the value in a list, from 0; the candidates differ by it where they can.
            depth: Number of levels above.
        """
        match kind:
            case "string":
                yield from _strings(schema, name, nth)
            case "integer":
                yield from _numbers(schema, nth, step=1)
            case "number":
                yield from _numbers(schema, nth, step=0)
            case "boolean":
                yield nth % 2 == 0
                yield nth % 2 == 1
            case "null":
                yield None
            case "array":
                yield from self._arrays(schema, name, depth)
            case "object":
                yield from self._objects(schema, depth)

    def _arrays(self, schema: Mapping[str, Any], name: str, depth: int) -> Iterator[list[Any]]:
        """Yield candidates of a list, of one or two lengths, whose items are the first candidates of their schemas.

        The first list has the minimum length, but one item at least above the level `_DEEP`; the second has the minimum
        length. A list with an item that has no candidate is left out.
        """
        first, rest = schema.get("prefixItems", []), schema.get("items", schema.get("contains", True))
        least = max(schema.get("minItems", 0), schema.get("minContains", 1) if "contains" in schema else 0)
        for size in dict.fromkeys([max(least, len(first) or depth <= _DEEP), least]):
            schemas = [*first, *[rest] * size][: min(size, schema.get("maxItems", size))]
            items = [self._first(each, name, nth, depth + 1) for nth, each in enumerate(schemas)]
            if _NONE not in items:
                yield items

    def _objects(self, schema: Mapping[str, Any], depth: int) -> Iterator[dict[str, Any]]:
        """Yield an object with its required properties, or more up to the minimum number, then one with all properties.

        An object with a property that has no candidate is left out.
        """
        fields: Mapping[str, Any] = schema.get("properties", {})
        further = schema.get("additionalProperties", True)
        required = [*schema.get("required", ())]
        missing = schema.get("minProperties", 0) - len(required)
        optional = [name for name in fields if name not in required]
        invented = [f"key{number}" for number in range(1, missing - len(optional) + 1)]
        # All properties are the second choice: other keywords may require some of them.
        for names in ([*required, *[*optional, *invented][: max(0, missing)]], [*required, *optional, *invented]):
            values = {name: self._first(fields.get(name, further), name, 0, depth + 1) for name in names}
            if _NONE not in values.values():
                yield values

    def _first(self, schema: Any, name: str, nth: int, depth: int) -> Any:
        """Return the first of `_MOST_CANDIDATES` candidates that matches a part of the schema; `_NONE` if none does."""
        # With the validator of the whole schema, to whose definitions a part may refer.
        check = self._check.evolve(schema=schema)
        candidates = islice(self.of(schema, name, nth, depth), _MOST_CANDIDATES)
        return next((value for value in candidates if check.is_valid(value)), _NONE)

    def _merged(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a schema with its references resolved and its parts under `allOf` joined into one.

        At most `_MOST_NESTED` references and joins are followed.
        """
        for _ in range(_MOST_NESTED):
            if isinstance(reference := schema.get("$ref"), str):
                schema = _both({key: value for key, value in schema.items() if key != "$ref"}, self._at(reference))
            elif parts := schema.get("allOf"):
                schema = {key: value for key, value in schema.items() if key != "allOf"}
                for part in parts:
                    schema = _both(schema, self._merged(part) if isinstance(part, Mapping) else part)
            else:
                break
        return schema

    def _at(self, reference: str) -> Any:
        """Return the part of the whole schema that a local reference names; an empty one if it does not exist."""
        found: Any = self._root
        for key in reference.removeprefix("#").split("/")[1:]:
            found = found.get(key.replace("~1", "/").replace("~0", "~"), {}) if isinstance(found, Mapping) else {}
        return found


class _None:
    """The absence of a value; None is JSON's null, which is a value."""

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


_NONE = _None()


def _both(one: Mapping[str, Any], other: Any) -> Mapping[str, Any]:
    """Return a schema for values that match both schemas, as far as it can be joined.

    It has the narrower of two bounds or lists of values, all properties and all required names; for any other keyword
    in both, the value in `one` counts. If `other` is no mapping (such as True), `one` is returned.
    """
    if not isinstance(other, Mapping):
        return one
    joined = {**other, **one}
    for key in one.keys() & other.keys():
        left, right = one[key], other[key]
        if key == "properties":
            joined[key] = {**right, **left}
        elif key == "required":
            joined[key] = list(dict.fromkeys([*left, *right]))
        elif key in _NARROWER:
            joined[key] = _NARROWER[key](left, right)
    return joined


_NARROWER: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(["minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"], max),
    **dict.fromkeys(["maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"], min),
    "enum": lambda left, right: [value for value in left if value in right],
}
"""Keyword → function that returns the narrower of two of its values."""


def _strings(schema: Mapping[str, Any], name: str, nth: int) -> Iterator[str]:
    """Yield texts for a schema: by its format, `name`, cut or repeated to the permitted length, and for a pattern some
    common texts, of which one may match.

    `nth` is the index of the text in a list, from 0. Texts of different indexes differ, except those of a format and
    of a pattern, and where the permitted length cuts the number off.
    """
    if (known := _FORMATS.get(schema.get("format", ""))) is not None:
        yield known
    least = schema.get("minLength", 0)
    text = f"{name}{nth + 1}" if nth else name
    longer = text * math.ceil(least / max(1, len(text)))
    yield (longer[:least] if len(text) < least else text)[: schema.get("maxLength")]
    if "pattern" in schema:
        yield from ("a", "A", "0", *_FORMATS.values())


def _numbers(schema: Mapping[str, Any], nth: int, *, step: int) -> Iterator[float]:
    """Yield numbers for a schema, which begin with 1 if that is in its range, and else with the bound nearest to 1.

    The others are some steps above and below; a few may be out of the range, as the caller validates them. `step` is 1
    for integers and 0 for all numbers. `nth` shifts the first one, so that the items of a list differ.
    """
    multiple = schema.get("multipleOf", step)
    low = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf))
    high = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf))
    start = 1 if low <= 1 <= high else low if math.isfinite(low) else high
    base = math.ceil(start / multiple) * multiple if multiple else start
    by = multiple or min(1.0, (high - low) / 8 or 1.0)
    for number in (*range(nth, nth + 4), 0):
        for value in (base + number * by, base - number * by):
            yield int(value) if step else value


_NO_CALLS = "No tool was called."
"""The answer to an input without a result."""
_CLOSING = "Now provide your final response"
"""Begin of the default prompt that asks for the answer."""
_HEADING = "## "
"""Begin of the line with a tool's name in the default prompt of text mode."""
_SCHEMA = re.compile(r"must fit this JSON schema:\s*(?=\{)")
_RESULT = re.compile(rf'{RESULT_MARKER}(?: call="\d+")? name="([^"]*)"(?: status="[^"]*")?>\n')
_RESULT_END = "\n</tool_result>"


class TestModel(ScriptedChatModel):
    """A chat model that calls each offered tool once per input, in one wave, and then answers with the results.

    The arguments match the JSON schemas of the tools, and are the same in each run: an argument has its default or
    first example, or else the simplest value of its type; a string is the name of its parameter. Delegates are tools,
    too. With a response format, the answer is a value of its schema. It works in each mode of tool calling, and reads
    the tools of text mode from the default prompt.

    `requests` holds what the model received. It may be shared by agents and sessions.

    Args:
        call_tools: the names of the tools to call, in order; `"all"` (default) for those of the request.
        answer: the text of each answer; by default `<tool>: <result>`, one line for each call.
        arguments: tool name → arguments that replace generated ones.
        **kwargs: fields of `BaseChatModel`, such as `profile`.

    Raises:
        ScriptError: from a request whose tools do not include one of `call_tools`, or have a schema for which no value
            is found.
    """

    __test__: ClassVar[bool] = False  # pytest collects classes by this prefix

    def __init__(
        self,
        *,
        call_tools: Literal["all"] | Sequence[str] = "all",
        answer: str | None = None,
        arguments: Mapping[str, Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__([], **{"model": "test", **kwargs})
        self._script = _Improvisation(call_tools, answer, arguments or {})


class _Improvisation(ModelScript):
    """A script without entries: each reply depends only on the request."""

    def __init__(
        self, call_tools: Literal["all"] | Sequence[str], answer: str | None, arguments: Mapping[str, Mapping[str, Any]]
    ) -> None:
        super().__init__([], cycle=False)
        self._call_tools = None if call_tools == "all" else list(call_tools)
        self._answer = answer
        self._arguments = arguments
        self._examples: dict[str, Any] = {}

    def take(self, request: ScriptedRequest) -> AIMessage:
        """Record a request in `requests`, and return its reply. Thread-safe.

        The reply has the calls, if the current input has none yet, the request permits calls and there are tools;
        otherwise it is the answer. Its form is that of the request: native calls, a structured plan, or JSON in the
        text. Raises `ScriptError` if the request does not offer a tool of `call_tools`, or has a schema for which no
        value is found.
        """
        with self._lock:
            self.requests.append(request)
        tools = {tool["function"]["name"]: tool["function"] for tool in request.tools if "function" in tool}
        # With structured planning, this one tool carries the calls of all others.
        plan = tools.pop(PLAN_TOOL, None)
        schemas = {name: tool.get("parameters") or {} for name, tool in tools.items()}
        messages = [message for message in request.messages if not is_example(message)]
        history = [(message, _calls_in(message)) for message in messages]
        # The current input begins after the last answer: it has its calls already if one follows.
        answers = [at for at, (message, calls) in enumerate(history) if message.type == "ai" and not calls]
        newest = history[answers[-1] + 1 if answers else 0 :]
        is_open = request.tool_choice != "none" and not request.messages[-1].text.startswith(_CLOSING)
        calls: list[ToolCall] = []
        if is_open and not any(calls for _, calls in newest):
            begun = sum(len(calls) for _, calls in history)
            calls = self._calls(schemas or dict(_tools_in_text(request.messages)), request.tool_choice, begun)
        answer = "" if calls else self._text_of_answer(request, newest)
        if plan is not None:
            planned = [{"id": call["id"], "tool": call["name"], "args": call["args"]} for call in calls]
            given = {"status": "continue" if calls else "done", "tools": planned, "answer": answer}
            value = {**self._example(plan["parameters"], "plan"), **given}
            return AIMessage("", tool_calls=[ToolCall(name=PLAN_TOOL, args=value, id=None)])
        if schemas or not calls:
            return AIMessage(answer, tool_calls=calls)
        written = [{"id": call["id"], "name": call["name"], "arguments": call["args"]} for call in calls]
        return AIMessage(json.dumps({"tool_calls": written}, ensure_ascii=False))

    def _calls(self, schemas: Mapping[str, Any], choice: Any, begun: int) -> list[ToolCall]:
        """Return one call for each tool to call; ids are numbered over the whole history, after its `begun` calls.

        `schemas` is tool name → JSON schema of the arguments; `choice` is the request's tool choice, which may name one
        tool. Raises `ScriptError` for a name in `call_tools` that is not offered.
        """
        names = list(schemas)
        if self._call_tools is not None:
            # Some providers restrict the characters of names, so the request may have an alias of a tool.
            names = [name if name in schemas else alias_of(name) for name in self._call_tools]
            if schemas and (unknown := [name for name in names if name not in schemas]):
                raise ScriptError(f"TestModel(call_tools=…) names {unknown}; the request offers {list(schemas)}.")
        if choice in schemas:
            names = [choice]
        given = {alias: values for name, values in self._arguments.items() for alias in (name, alias_of(name))}
        return [
            ToolCall(
                name=name,
                args=dict(given[name]) if name in given else self._example(schemas[name], name),
                # Over the whole history, because ids of calls are unique in a session.
                id=f"call_{begun + number}",
                type="tool_call",
            )
            for number, name in enumerate((name for name in names if name in schemas), 1)
        ]

    def _text_of_answer(self, request: ScriptedRequest, newest: Sequence[_Read]) -> str:
        """Return the text of an answer: the given one, a value of the response format as JSON, or the results of calls.

        The results are those in `newest`, as `<tool>: <result>`, one a line; without any it is `_NO_CALLS`.
        """
        if self._answer is not None:
            return self._answer
        if (schema := _answer_schema(request)) is not None:
            return json.dumps(self._example(schema, "answer"), ensure_ascii=False)
        names = {id_: name for _, calls in newest for id_, name in calls}
        found = [result for message, _ in newest for result in _results_in(message)]
        results = [(name or names.get(id_, "tool"), text) for id_, name, text in found]
        return "\n".join(f"{name}: {text}" for name, text in results) or _NO_CALLS

    def _example(self, schema: Mapping[str, Any], name: str) -> Any:
        """Return a new copy of the generated value for the schema of an object.

        It is generated once for each pair of schema and `name`, which names the value (see `example_of`).
        """
        key = json.dumps([name, schema], default=str)
        if key not in self._examples:
            self._examples[key] = example_of({"type": "object", **schema}, name)
        # A tool may change its arguments.
        return copy.deepcopy(self._examples[key])


_Read = tuple[BaseMessage, list[tuple[str, str]]]
"""A message, and the ids and names of its calls."""


def _calls_in(message: BaseMessage) -> list[tuple[str, str]]:
    """Return id and name of each call of a message: its native calls, or those in JSON in the last line of its text.

    The latter is the form of text mode and of structured plans. Empty if there are none, or the message is none of a
    model.
    """
    if not isinstance(message, AIMessage):
        return []
    if message.tool_calls:
        return [(call["id"] or "", call["name"]) for call in message.tool_calls]
    value = read_object(message.text.rpartition("\n")[2]) or {}
    calls = value.get("tool_calls", value.get("tools"))
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        return []
    return [(call.get("id") or "", call.get("name", call.get("tool"))) for call in calls]


def _results_in(message: BaseMessage) -> Iterator[tuple[str, str, str]]:
    """Yield call id, tool name and text of each result in a message; an id or name that is unknown is empty."""
    if isinstance(message, ToolMessage):
        yield message.tool_call_id, "", message.text
    elif message.type == "human" and message.text.startswith(RESULT_MARKER):
        for part in message.text.split(_RESULT_END)[:-1]:
            if start := _RESULT.search(part):
                yield "", start[1], part[start.end() :]
    elif message.type == "human" and isinstance(found := (read_object(message.text) or {}).get("results"), dict):
        for id_, value in found.items():
            yield id_, "", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _tools_in_text(messages: Sequence[BaseMessage]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and JSON schema of each tool that the system prompt describes: a heading, text, and a line of JSON."""
    name = ""
    for line in "\n".join(message.text for message in messages if message.type == "system").splitlines():
        if line.startswith(_HEADING):
            name = name or line.removeprefix(_HEADING).strip()
        elif name and (schema := read_object(line)):
            yield name, schema
            name = ""


def _answer_schema(request: ScriptedRequest) -> dict[str, Any] | None:
    """Return the JSON schema of the answer, from the provider's option or from the prompts; None for free text."""
    match request.kwargs.get("response_format"):
        case {"json_schema": {"schema": dict() as schema}}:
            return schema
    for message in reversed(request.messages):
        if found := _SCHEMA.search(message.text):
            schema, _ = json.JSONDecoder().raw_decode(message.text, found.end())
            return dict(schema)
    return None
