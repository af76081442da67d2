"""Converts the parameters of tools, as servers publish them, to JSON schemas that providers accept.

Providers refuse a whole request for one tool whose schema they do not accept. The converted schema only guides the
model; the arguments of a call are validated by the original.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from graph_agent.base._compat import parse_pattern

Schema = dict[str, Any]

_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""Matches property names that every provider accepts."""
_MOST_KEY_CHARS = 64
_MOST_LEVELS = 60
"""Maximum nesting of a schema; a tool with a deeper one cannot be offered."""
_MOST_PARTS = 2_000
"""Maximum alternatives at the root of a schema, including referenced ones, which each level of `$ref` can double."""


@dataclass(frozen=True, slots=True)
class OfferedSchema:
    """The parameters of a tool in the form in which the model receives them."""

    parameters: Schema
    names: Mapping[str, str] = field(default_factory=dict)
    """Offered property name → original name, for renamed properties at any level."""

    def restored(self, arguments: Any) -> Any:
        """Return a copy of a call's arguments under the original property names, at any level of nesting.

        The same object if no property was renamed. A renamed key is restored wherever it occurs.
        """
        return _renamed(arguments, self.names) if self.names else arguments


def fold_schema(
    parameters: Any, *, root_combinators: bool = False, free_keys: bool = False, text_enums: bool = False
) -> OfferedSchema | None:
    """Convert the parameters of a tool to a JSON schema that providers accept.

    An already accepted schema is the same object. At the root, alternatives are merged to one object with all their
    properties; a property is required if all alternatives require it. References without a target and keywords with
    invalid values are dropped; type names of other languages are translated, e.g. `int`. The given schema is never
    changed.

    Args:
        parameters: The schema as published by a server; any value is accepted, and one that is no schema counts as
            `{}`.
        root_combinators: Whether the provider accepts `anyOf`, `oneOf` and `allOf` at the root.
        free_keys: Whether the provider accepts any character in property names; otherwise they are renamed.
        text_enums: Whether the provider accepts only strings in `enum`; other values are listed in the description.

    Returns:
        The schema and the renamed properties. None if no object satisfies the schema, or it is too large or too deep.
    """
    try:
        root = _Converter(parameters).convert(parameters)
        if root is None:
            return None
        if not (root_combinators and root.get("type") == "object"):
            folder = _Folder(root)
            root = folder.fold(root)
            # The alternatives beyond the limit were left out as unusable.
            if folder.parts_left < 0:
                return None
        if text_enums:
            _describe_enums(root)
        offered = OfferedSchema(root) if free_keys else _with_plain_keys(root)
    except (_UnusableError, RecursionError):
        return None
    return OfferedSchema(parameters) if offered.parameters == parameters else offered


class _UnusableError(Exception):
    """Raised within the conversion if no object satisfies the schema, or it is too large or nested too deeply."""


_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_OTHER_TYPES = {
    **dict.fromkeys(("int", "long"), "integer"),
    **dict.fromkeys(("float", "double", "decimal"), "number"),
    **dict.fromkeys(("str", "text", "date", "datetime", "uuid"), "string"),
    **dict.fromkeys(("dict", "map"), "object"),
    **dict.fromkeys(("list", "tuple", "set"), "array"),
    "bool": "boolean",
    "none": "null",
}
"""Type names of other languages → JSON types."""
_ONE = frozenset({"contains", "propertyNames", "not", "if", "then", "else", "unevaluatedProperties"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_DEFINITIONS = ("$defs", "definitions")
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", *_DEFINITIONS})
"""Keywords whose value is a schema (`_ONE`), a list of schemas (`_LISTS`), or a dict of schemas (`_MAPS`)."""
_DROPPED = frozenset({"$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$comment", "$vocabulary"})
"""Keywords that break the grammars of some providers and do not guide a model."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_pattern(value: Any) -> bool:
    try:
        parse_pattern(value)  # not compiled, which may take minutes
    except (TypeError, re.error, RecursionError, OverflowError):
        return False
    return True


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("title", "description", "format"), lambda value: isinstance(value, str)),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _is_size),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), lambda value: isinstance(value, bool)),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    "pattern": _is_pattern,
    "enum": lambda value: isinstance(value, list) and bool(value),
    "examples": lambda value: isinstance(value, list),
}
"""Keyword → function that returns whether its value is valid; an invalid one is dropped."""


class _Converter:
    """Converts any value to a valid JSON schema, level by level.

    `root` is the schema that local references such as `#/$defs/A` point into.
    """

    def __init__(self, root: Any) -> None:
        self._root = root

    def convert(self, given: Any, level: int = 0) -> Schema | None:
        """Return a value as a valid schema, without keywords that providers refuse; the value is not changed.

        A string is the name of a type, or else a description; other values than dicts become `{}`, which accepts
        anything. An array without `items` gets them from `prefixItems`, null leaves an `enum` with other values, and a
        property's own `required: true` enters the list `required`, in which only known properties stay.

        Args:
            given: The value, at any level of the original schema.
            level: Number of levels above the value.

        Returns:
            The schema; None if nothing satisfies it, i.e. for `false`.

        Raises:
            _UnusableError: The value is nested too deeply.
        """
        if level > _MOST_LEVELS:
            raise _UnusableError
        if given is False:
            return None
        if isinstance(given, str):
            kind = _type_of(given)
            return {"description": given} if kind is None else {"type": kind}
        if not isinstance(given, dict):
            return {}
        converted: Schema = {}
        for keyword, value in given.items():
            if keyword not in _DROPPED:
                converted |= self._keyword(keyword, value, level + 1)
        if "properties" in given and "properties" not in converted:
            converted["properties"] = {}
        if converted.get("type") == "array" and "items" not in converted:
            # OpenAI and Gemini demand it, also of the tuples of newer drafts.
            kinds = converted.pop("prefixItems", [])
            converted["items"] = kinds[0] if len(kinds) == 1 else {"anyOf": kinds} if kinds else {}
        if None in (choices := converted.get("enum") or ()) and any(choice is not None for choice in choices):
            # LangChain's client of Gemini fails on a null; an argument that may be null can be left out.
            converted["enum"] = [choice for choice in choices if choice is not None]
        required = [*_texts(given.get("required")), *self._marked_required(given)]
        if "properties" in converted:
            required = [name for name in required if name in converted["properties"]]
        converted.pop("required", None)
        if required or given.get("required") == []:
            converted["required"] = list(dict.fromkeys(required))
        return {keyword: converted[keyword] for keyword in [*given, *converted] if keyword in converted}

    def _keyword(self, keyword: str, value: Any, level: int) -> Schema:
        """Return one keyword with its converted value as a dict; an empty dict if the value is invalid.

        Schemas in the value are converted, references without a target are invalid, and in a list of schemas those that
        nothing satisfies are left out.

        Args:
            keyword: The keyword.
            value: Its value.
            level: Levels above the value.
        """
        if keyword == "type":
            kind = _type_of(value)
            return {} if kind is None else {"type": kind}
        if keyword == "$ref":
            return {"$ref": value} if _at(self._root, value) is not None else {}
        if keyword == "items":
            return self._items(value, level)
        if keyword == "additionalProperties":
            if isinstance(value, bool):
                return {keyword: value}
            return {keyword: self.convert(value, level)} if isinstance(value, dict) else {}
        if keyword in _MAPS:
            return {keyword: self._by_name(value, level)} if isinstance(value, dict) else {}
        if keyword in _LISTS:
            schemas = [self.convert(each, level) for each in (value if isinstance(value, list) else [value])]
            if value is None or not (usable := [each for each in schemas if each is not None]):
                return {}
            return {keyword: usable}
        if keyword in _ONE:
            schema = self.convert(value, level) if isinstance(value, dict) else None
            return {} if schema is None else {keyword: schema}
        check = _CHECKS.get(keyword)
        return {keyword: value} if check is None or check(value) else {}

    def _items(self, value: Any, level: int) -> Schema:
        if isinstance(value, list):
            # The form of a tuple in older drafts, which providers do not take.
            kinds = [each for item in value if (each := self.convert(item, level)) is not None]
            return {} if not kinds else {"items": kinds[0] if len(kinds) == 1 else {"anyOf": kinds}}
        items = self.convert(value, level)
        return {} if items is None else {"items": items}

    def _by_name(self, schemas: Mapping[str, Any], level: int) -> Schema:
        converted = {name: self.convert(schema, level) for name, schema in schemas.items()}
        return {name: schema for name, schema in converted.items() if schema is not None}

    @staticmethod
    def _marked_required(given: Schema) -> Iterator[str]:
        """Yield the names of properties whose own schema has `required: true`, which older drafts use instead of a
        list."""
        properties = given.get("properties")
        for name, schema in properties.items() if isinstance(properties, dict) else ():
            if isinstance(schema, dict) and schema.get("required") is True:
                yield name


class _Folder:
    """Merges the alternatives (`anyOf`, `oneOf`, `allOf`, …) at the root of a schema into one object schema."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self.parts_left = _MOST_PARTS
        """Number of alternatives that may still be merged; negative once the schema has too many."""

    def fold(self, node: Schema, *, within: frozenset[str] = frozenset()) -> Schema:
        """Return an object schema that accepts what any alternative of a schema accepts, without alternatives at its
        root. References at the root are resolved, and the properties of all alternatives are joined. A property is
        required if all alternatives, or one part of `allOf`, require it.

        Args:
            node: The schema.
            within: The references that are being resolved, to detect a circle.

        Raises:
            _UnusableError: No object satisfies the schema, it refers to itself at the root, or it has too many
                alternatives.
        """
        self.parts_left -= 1
        if self.parts_left < 0:
            raise _UnusableError
        if (reference := node.get("$ref")) is not None:
            if reference in within:
                raise _UnusableError
            target = _at(self._root, reference)
            return self.fold({**(target or {}), **_without(node, "$ref")}, within=within | {reference})
        kinds = node.get("type", "object")
        if kinds != "object" and "object" not in kinds:
            raise _UnusableError
        folded = {"type": "object", **_without(node, *_ROOT_ONLY), "properties": dict(node.get("properties") or {})}
        folded["type"] = "object"
        required = dict.fromkeys(_texts(node.get("required")))
        for keyword in ("anyOf", "oneOf"):
            if keyword in node:
                usable = list(self._usable(node[keyword], within))
                if not usable:
                    raise _UnusableError
                self._add(folded, usable, _either)
                required |= {
                    name: None for name in usable[0].get("required", ()) if all(name in _required(u) for u in usable)
                }
        for each in node.get("allOf", ()):
            part = self.fold(each, within=within)
            self._add(folded, [part], lambda first, second: {**first, **second})
            required |= dict.fromkeys(_required(part))
        for keyword in ("then", "else"):
            if keyword in node:
                self._add(folded, list(self._usable([node[keyword]], within)), _either)
        if required:
            folded["required"] = list(required)
        else:
            folded.pop("required", None)
        if node.keys() & _COMBINED and folded.get("additionalProperties") is False:
            # It may have been about the properties of one alternative.
            del folded["additionalProperties"]
        return folded

    def _usable(self, schemas: list[Schema], within: frozenset[str]) -> Iterator[Schema]:
        """Yield the folded form of each schema that an object can satisfy; the others are left out.

        Args:
            schemas: Alternatives of a schema.
            within: The references that are being resolved.
        """
        for schema in schemas:
            try:
                yield self.fold(schema, within=within)
            except _UnusableError:
                continue

    @staticmethod
    def _add(folded: Schema, parts: list[Schema], join: Callable[[Schema, Schema], Schema]) -> None:
        """Add the properties of `parts` to those of `folded`, in place.

        `join` merges two schemas of the same property.
        """
        for part in parts:
            for name, schema in part["properties"].items():
                own = folded["properties"].get(name)
                folded["properties"][name] = schema if own is None or own == schema else join(own, schema)


_ROOT_ONLY = ("anyOf", "oneOf", "allOf", "not", "if", "then", "else", "enum", "const", "dependentSchemas", "$ref")
_COMBINED = {"anyOf", "oneOf", "allOf", "then", "else"}


def _either(first: Schema, second: Schema) -> Schema:
    """Return a schema that accepts what either of two schemas accepts: one `enum` without repeats if both only list
    their values, else `anyOf`.
    """
    values = [_values(each) for each in (first, second)]
    if all(each is not None for each in values):
        joined = [value for each in values for value in each or ()]
        kind = {"type": first["type"]} if first.get("type") and first.get("type") == second.get("type") else {}
        shown = {"description": text} if (text := first.get("description") or second.get("description")) else {}
        return {**kind, **shown, "enum": [value for at, value in enumerate(joined) if value not in joined[:at]]}
    alternatives = [*(first["anyOf"] if first.keys() == {"anyOf"} else [first])]
    return {"anyOf": [*alternatives, *([] if second in alternatives else [second])]}


def _values(schema: Schema) -> list[Any] | None:
    """Return the values of a schema that only lists values by `enum` or `const`; None for any other schema."""
    if schema.keys() - {"type", "description", "title", "const", "enum", "default"}:
        return None
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _with_plain_keys(root: Schema) -> OfferedSchema:
    """Rename the properties whose names have characters that providers refuse, or over 64, to unique accepted names.

    Returns the schema with the new names and the map new name → original name; a schema without such names is used as
    it is.
    """
    taken = set(_property_names(root))
    aliases: dict[str, str] = {}
    for name in dict.fromkeys(_property_names(root)):
        if _KEY.fullmatch(name):
            continue
        plain = alias = re.sub(r"[^a-zA-Z0-9_.-]", "_", name)[:_MOST_KEY_CHARS] or "_"
        number = 2
        while alias in taken:
            # The cut leaves room for the number.
            alias, number = f"{plain[: _MOST_KEY_CHARS - 8]}_{number}", number + 1
        taken.add(alias)
        aliases[name] = alias
    if not aliases:
        return OfferedSchema(root)
    return OfferedSchema(_with_aliases(root, aliases), {alias: name for name, alias in aliases.items()})


def _describe_enums(node: Schema) -> None:
    """Replace each `enum` that holds other values than strings by a sentence in its description, at any level and in
    place."""
    choices = node.get("enum")
    if isinstance(choices, list) and not all(isinstance(choice, str) for choice in choices):
        del node["enum"]
        listed = f"One of {', '.join(map(str, choices))}."
        node["description"] = " ".join(filter(None, [str(node.get("description") or ""), listed]))
    for each in _subschemas(node):
        _describe_enums(each)


def _subschemas(node: Schema) -> Iterator[Schema]:
    """Yield the schemas one level below a schema, under any keyword."""
    for keyword, value in node.items():
        if keyword in _MAPS:
            yield from value.values()
        elif keyword in _LISTS:
            yield from value
        elif isinstance(value, dict) and (keyword in _ONE or keyword in ("items", "additionalProperties")):
            yield value


def _property_names(node: Schema) -> Iterator[str]:
    """Yield the names of the properties of a schema, at any level; a name may come several times."""
    yield from node.get("properties", ())
    for each in _subschemas(node):
        yield from _property_names(each)


def _with_aliases(node: Schema, aliases: Mapping[str, str]) -> Schema:
    """Return a copy of a schema with the properties renamed at any level, also where `required` lists them.

    `aliases` is original name → new name.
    """
    renamed: Schema = {}
    for keyword, value in node.items():
        if keyword in _MAPS:
            given = {name: _with_aliases(each, aliases) for name, each in value.items()}
            renamed[keyword] = _renamed_keys(given, aliases) if keyword == "properties" else given
        elif keyword in _LISTS:
            renamed[keyword] = [_with_aliases(each, aliases) for each in value]
        elif isinstance(value, dict) and (keyword in _ONE or keyword in ("items", "additionalProperties")):
            renamed[keyword] = _with_aliases(value, aliases)
        elif keyword == "required":
            renamed[keyword] = [aliases.get(name, name) for name in value]
        else:
            renamed[keyword] = value
    return renamed


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Return a value with the keys of all its dicts renamed, at any level; `names` is present key → new key."""
    if isinstance(value, dict):
        return _renamed_keys({key: _renamed(each, names) for key, each in value.items()}, names)
    return [_renamed(each, names) for each in value] if isinstance(value, list) else value


def _renamed_keys(value: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): each for key, each in value.items()}


def _type_of(given: Any) -> Any:
    """Return the JSON type that a word names, or the list of types for a list of words; None if none is known.

    Case is ignored, and names of other languages such as `int` are translated. A single type is not a list.
    """
    if isinstance(given, str):
        word = given.strip().lower()
        return word if word in _TYPES else _OTHER_TYPES.get(word)
    if not isinstance(given, list):
        return None
    kinds = list(dict.fromkeys(kind for each in given if isinstance(each, str) and (kind := _type_of(each))))
    if kinds == given:
        return given
    return kinds[0] if len(kinds) == 1 else kinds or None


def _at(root: Any, reference: Any) -> Any | None:
    """Return the schema that a local reference such as `#/$defs/A` names; None if it is not local or has no target."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or key not in found:
            return None
        found = found[key]
    return found if isinstance(found, dict) else None


def _texts(value: Any) -> list[str]:
    """Return the strings of a list; empty for any other value."""
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _required(schema: Schema) -> list[str]:
    return _texts(schema.get("required"))


def _without(node: Schema, *keywords: str) -> Schema:
    return {keyword: value for keyword, value in node.items() if keyword not in keywords}
