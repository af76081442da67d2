"""Builds JSON schemas of replies from the tools of a request, for servers that generate by a schema.

Each tool has its own branch, with its name and the schema of its arguments, so that a server that turns the schema into
a grammar permits neither an unknown tool nor the arguments of another. A schema keeps only the keywords that such
servers implement; the arguments are checked against the tool's own schema before a call runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graph_agent.models.wire.schemas import Schema

MOST_CALLS = 16
"""Most calls that a reply which follows a schema may have.

Without a limit, a small model repeats one call endlessly.
"""

_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_COMBINED = ("anyOf", "oneOf", "allOf", "not", "if", "then", "else", "dependentSchemas", "$dynamicRef")
"""Keywords that may add properties to those listed in `properties`."""
_BOUNDS = ("minItems", "maxItems", "minLength", "maxLength")
_MOST_BOUND = 64
"""Largest value of a keyword such as `maxItems` that is kept; a grammar repeats a rule as often as it counts."""
_MOST_LEVELS = 40
_REFERENCE: Schema = {"type": "string", "pattern": "^[$][{][^{}]{1,128}[}]$"}
"""Schema of a structured plan's reference to an earlier result, such as `${id.field}`, in place of any value."""
_ID: Schema = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,32}$"}
_MOST_CHARS_OF_PLAN = {"action": 64, "reasoning": 160}
"""Field of a structured plan → maximum characters; a small model would fill its output with these texts."""


def reply_schema(
    tools: Sequence[Mapping[str, Any]],
    *,
    answer: Schema | None,
    required: str | None = None,
    most_calls: int = MOST_CALLS,
) -> Schema:
    """Return the JSON schema of a reply in text that is either calls or an answer.

    Calls are an object whose `tool_calls` lists objects with `name` and `arguments`, which only the offered tools fit.

    Args:
        tools: The offered tools, in OpenAI's function format; at least one.
        answer: Schema of a reply without calls; None if a reply without calls has an empty list instead.
        required: Name of the tool that must be called, or any other text if one of the tools must be called; None if
            the reply may be an answer.
        most_calls: Maximum calls of one reply; larger values count as `MOST_CALLS`.
    """
    names = {tool["function"]["name"] for tool in tools}
    offered = [tool for tool in tools if required not in names or tool["function"]["name"] == required]
    definitions: Schema = {}
    branches = [
        _closed({"name": _only(name), "arguments": arguments}) for name, arguments in _arguments(offered, definitions)
    ]
    # An empty list is the reply without calls where there is no schema of an answer.
    least = 0 if answer is None and required is None else 1
    calls = {"type": "array", "items": _any_of(branches), "minItems": least, "maxItems": min(most_calls, MOST_CALLS)}
    choices = [_closed({"tool_calls": calls})]
    if answer is not None and required is None:
        choices.append(_hoisted(answer, "answer", definitions))
    schema = _any_of(choices)
    return {**schema, "$defs": definitions} if definitions else schema


def text_answer_schema() -> Schema:
    """Return the JSON schema of an answer in text mode: an object with the text under `answer`."""
    return _closed({"answer": {"type": "string"}})


def plan_schema(plan: Schema, tools: Sequence[Mapping[str, Any]], *, bounded: bool = False) -> Schema:
    """Return the JSON schema of a structured plan in which each call fits one of the offered tools.

    Any value in the arguments may be a reference such as `${id.field}` instead. The list of calls becomes required.
    Without tools, or if the calls of the plan's class differ from those of `PlanningResult`, only `bounded` has an
    effect. `plan` is not changed, but the result may share parts with it.

    Args:
        plan: JSON schema of `PlanningResult` or of a subclass.
        tools: The offered tools, in OpenAI's function format.
        bounded: Whether to limit ids, the number of calls, and texts other than the answer, because a small model may
            write them without end. If so, optional fields without a type are left out.
    """
    plan = _bounded(plan) if bounded else plan
    calls = plan.get("properties", {}).get("tools")
    call = plan.get("$defs", {}).get("WaveCall")
    if not tools or call is None or not isinstance(calls, dict) or calls.get("items") != {"$ref": "#/$defs/WaveCall"}:
        return plan
    definitions = {name: schema for name, schema in plan["$defs"].items() if name != "WaveCall"}
    fields = call["properties"]
    branches = [
        {
            "type": "object",
            "properties": {**fields, "tool": _only(name), "args": arguments},
            "required": ["id", "tool", "args"],
            "additionalProperties": False,
        }
        for name, arguments in _arguments(tools, definitions, references=True)
    ]
    changed = {**plan, "properties": {**plan["properties"], "tools": {**calls, "items": _any_of(branches)}}}
    # A model that may leave out the list of calls does.
    changed["required"] = list(dict.fromkeys([*plan.get("required", ()), "tools"]))
    changed.pop("$defs")
    return {**changed, "$defs": definitions} if definitions else changed


def _bounded(plan: Schema) -> Schema:
    """Return the schema of a plan with limits for its ids, number of calls and texts, and without untyped optional
    fields."""
    fields = {
        name: {"maxLength": _MOST_CHARS_OF_PLAN[name], **field} if name in _MOST_CHARS_OF_PLAN else field
        for name, field in plan.get("properties", {}).items()
        if field.keys() & {"type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"}
        or name in plan.get("required", ())
    }
    if fields.get("tools", {}).get("type") == "array":
        fields["tools"] = {"maxItems": MOST_CALLS, **fields["tools"]}
    definitions = plan.get("$defs", {})
    if (call := definitions.get("WaveCall")) is not None:
        bounds: Schema = {"id": _ID, "needs": {"type": "array", "items": _ID, "maxItems": MOST_CALLS}}
        of_call = {name: {**field, **bounds.get(name, {})} for name, field in call["properties"].items()}
        definitions = {**definitions, "WaveCall": {**call, "properties": of_call}}
    bounded = {"additionalProperties": False, **plan, "properties": fields}
    return {**bounded, "$defs": definitions} if definitions else bounded


def _closed(properties: Schema) -> Schema:
    """Return the schema of an object with exactly the given properties, all of them required."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _only(name: str) -> Schema:
    """Return the schema of one fixed text."""
    # Not `const`, which some providers drop from the schema of a tool.
    return {"type": "string", "enum": [name]}


def _any_of(choices: list[Schema]) -> Schema:
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


def _arguments(
    tools: Sequence[Mapping[str, Any]], definitions: Schema, *, references: bool = False
) -> Iterator[tuple[str, Schema]]:
    """Yield each tool's name and the reduced schema of its arguments, for use in a larger schema.

    Args:
        tools: The offered tools, in OpenAI's function format.
        definitions: The `$defs` of the larger schema; parts that the arguments refer to are added, in place.
        references: Whether each value may also be a reference of a structured plan.
    """
    for tool in tools:
        function = tool["function"]
        given = function.get("parameters")
        name = function["name"]
        arguments = _hoisted(given if isinstance(given, dict) else {}, name, definitions, references=references)
        # A union, or a reference to a definition, describes the object by itself.
        yield name, arguments if arguments.keys() & {"anyOf", "$ref"} else {**arguments, "type": "object"}


def _hoisted(schema: Schema, name: str, definitions: Schema, *, references: bool = False) -> Schema:
    """Return a schema reduced to the keywords that servers implement, for use inside a larger schema.

    Args:
        schema: The schema, whose local references point into itself.
        name: Begin of the names under which its parts are added to `definitions`.
        definitions: The `$defs` of the larger schema; parts that the schema refers to are added, in place.
        references: Whether each value may also be a reference of a structured plan.
    """
    return _Reduction(schema, name, definitions, references=references).reduced()


class _Reduction:
    """Reduces one schema to the keywords that servers implement.

    A part that the schema refers to is reduced once and added to the definitions, even if it refers to itself.
    """

    def __init__(self, root: Schema, name: str, definitions: Schema, *, references: bool) -> None:
        self._root = root
        self._name = re.sub(r"[^A-Za-z0-9_-]", "_", name)
        self._definitions = definitions
        self._references = references
        self._keys: dict[str, str] = {}
        """JSON pointer of a part → its name in the definitions."""

    def reduced(self) -> Schema:
        """Return the reduced schema; the definitions get the parts that it refers to."""
        return self._reduce(self._root, 0, is_root=True)

    def _reduce(self, node: Any, level: int, *, is_root: bool = False) -> Schema:
        """Return a reduced part.

        Unless it is the root or accepts any text, it also accepts a reference of a plan, if wanted.
        """
        reduced = self._plain(node, level) if isinstance(node, dict) else {}
        # Any text accepts a reference already, and a referenced part has its own alternative.
        if self._references and not is_root and reduced and reduced != {"type": "string"} and "$ref" not in reduced:
            return {"anyOf": [reduced, _REFERENCE]}
        return reduced

    def _plain(self, node: Schema, level: int) -> Schema:
        """Return a part reduced to the known keywords. Beyond 40 levels it is `{}`, which accepts anything.

        The first of these that the part has excludes all other keywords: a reference, `const`, `enum`, alternatives
        without properties. Of several types with an object among them, the object becomes an alternative.
        """
        if level > _MOST_LEVELS:
            return {}
        if isinstance(pointer := node.get("$ref"), str):
            return self._referred(pointer)
        if "const" in node:
            return {"const": node["const"]}
        if isinstance(values := node.get("enum"), list) and values:
            return {"enum": values}
        choices = node.get("anyOf", node.get("oneOf"))
        if isinstance(choices, list) and choices and "properties" not in node:
            return {"anyOf": [self._plain(choice, level + 1) for choice in choices if isinstance(choice, dict)]}
        types = _types(node.get("type"))
        if isinstance(types, list) and "object" in types and "properties" in node:
            others = [kind for kind in types if kind != "object"]
            return {"anyOf": [self._plain({**node, "type": "object"}, level + 1), {"type": others}]}
        reduced: Schema = {"type": types} if types else {}
        reduced |= {bound: node[bound] for bound in _BOUNDS if _is_small(node.get(bound))}
        if isinstance(items := node.get("items"), dict):
            reduced["items"] = self._reduce(items, level + 1)
        if isinstance(fields := node.get("properties"), dict) or reduced.get("type") == "object":
            reduced |= self._object(node, fields if isinstance(fields, dict) else {}, level)
        return reduced

    def _object(self, node: Schema, fields: Schema, level: int) -> Schema:
        """Return an object schema with its properties reduced.

        Further properties are refused unless the original permits them, or has keywords that may add some.

        Args:
            fields: Property → schema.
            level: Levels above the object.
        """
        required = node.get("required")
        named = [name for name in required if name in fields] if isinstance(required, list) else []
        reduced: Schema = {"type": "object"}
        if fields:
            reduced["properties"] = {str(name): self._reduce(field, level + 1) for name, field in fields.items()}
        if named:
            reduced["required"] = named
        further = node.get("additionalProperties")
        open_by_pattern = "patternProperties" in node or any(keyword in node for keyword in _COMBINED)
        if isinstance(further, dict):
            reduced["additionalProperties"] = self._reduce(further, level + 1)
        elif further is True or open_by_pattern:
            reduced["additionalProperties"] = True
        elif fields:
            reduced["additionalProperties"] = False
        return reduced

    def _referred(self, pointer: str) -> Schema:
        """Return a reference to a part's place in the definitions, after adding the part there.

        `{}`, which accepts anything, if the reference has no target or leads in a circle.
        """
        part, followed = _part(self._root, pointer), {pointer}
        while part is not None and isinstance(following := part.get("$ref"), str):
            if following in followed:
                return {}
            followed.add(following)
            pointer, part = following, _part(self._root, following)
        if part is None:
            return {}
        if pointer not in self._keys:
            key, number = f"{self._name}_{pointer.rpartition('/')[2] or 'root'}", 1
            key = re.sub(r"[^A-Za-z0-9_-]", "_", key)
            # Several tools may have definitions of the same name.
            while (unique := key if number == 1 else f"{key}_{number}") in self._definitions:
                number += 1
            self._keys[pointer] = unique
            # Reserved first, because the part may refer to itself.
            self._definitions[unique] = {}
            self._definitions[unique] = self._reduce(part, 0, is_root=pointer == "#")
        return {"$ref": f"#/$defs/{self._keys[pointer]}"}


def _is_small(bound: object) -> bool:
    """Whether a bound is a whole number that a grammar can repeat."""
    return isinstance(bound, int) and not isinstance(bound, bool) and 0 <= bound <= _MOST_BOUND


def _types(given: Any) -> str | list[str] | None:
    """Return the JSON type, or list of types, in a schema's keyword `type`, in lower case.

    None if it names no known one.
    """
    if isinstance(given, str):
        return given.lower() if given.lower() in _TYPES else None
    if isinstance(given, list):
        known = [kind.lower() for kind in given if isinstance(kind, str) and kind.lower() in _TYPES]
        return known or None
    return None


def _part(root: Schema, pointer: str) -> Any:
    """Return the part of a schema at a local JSON pointer such as `#/$defs/Address`; None if there is none."""
    if not pointer.startswith("#"):
        return None
    part: Any = root
    for step in filter(None, pointer.removeprefix("#").split("/")):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, dict) and name in part:
            part = part[name]
        elif isinstance(part, list) and name.isdigit() and int(name) < len(part):
            part = part[int(name)]
        else:
            return None
    return part if isinstance(part, dict) else None
