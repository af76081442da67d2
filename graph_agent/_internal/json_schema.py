"""Checks a value against a JSON schema that anybody may have written, in a time that is bounded.

Python's own regular expressions may take years for a short text, and `$ref`s can double the work at each level.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import regex
from jsonschema import Draft202012Validator, FormatChecker, SchemaError, ValidationError, validators
from jsonschema.exceptions import best_match
from referencing import Registry, Specification
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, specification_with

from graph_agent._internal.regex import check_pattern, compile_pattern
from graph_agent.errors import ConfigError, SlowSchemaError

CHECK_S = 2.0
"""Seconds that one value may be checked for; an honest schema takes some milliseconds."""
PATTERN_S = 0.5
"""Seconds that one search for a pattern may take."""

_REFERENCES = frozenset({"$ref", "$dynamicRef"})
_DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are no schemas, whatever they look like."""
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
"""Keywords whose values have schemas below names of the author's choice, which may look like keywords."""

_until: ContextVar[float] = ContextVar("until")
_Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]


class SchemaCheck:
    """A JSON schema that values are checked against.

    Args:
        schema: The schema.
        name: What errors call it.

    Raises:
        ConfigError: When it is no valid schema, or one whose check cannot be bounded.
    """

    def __init__(self, schema: dict[str, Any], name: str = "response_format") -> None:
        try:
            # Its formats are patterns, which Python may take minutes to compile; they are checked below.
            Draft202012Validator.check_schema(schema, format_checker=FormatChecker(()))
            for pattern in _patterns(schema):
                check_pattern(pattern)
        except SchemaError as error:
            raise ConfigError(f"{name} is no valid JSON schema: {error.message}.") from None
        except (RecursionError, OverflowError, ValueError) as error:
            raise ConfigError(f"{name} is no JSON schema that can be used: {error}.") from None
        keywords = {keyword for keyword, _ in _items(schema)}
        if keywords >= {"unevaluatedProperties", "patternProperties"}:
            raise ConfigError(
                f"{name} has both unevaluatedProperties and patternProperties, which cannot be checked in "
                "bounded time; write additionalProperties in place of the first."
            )
        known = validators.validator_for(schema, default=Draft202012Validator)
        draft = specification_with(known.META_SCHEMA["$schema"], default=DRAFT202012)
        try:
            resource = draft.create_resource(schema)
            uri = resource.id() or ""
            # Gone through once; else once for each `$ref` to an `$anchor`.
            root = Registry().with_resource(uri, resource).crawl().resolver(uri)
            unresolved = _unresolved(schema, root, draft, _REFERENCES & known.VALIDATORS.keys())
        except ValueError as error:
            raise ConfigError(f"{name} has an $id or $ref that is no address: {error}.") from None
        if unresolved is not None:
            raise ConfigError(f"{name} refers to {unresolved!r}, which is not in it; nothing is fetched.")
        # A `$schema` inside would have what is below it checked by the library's own, unbounded keywords. Without a
        # registry the library would fetch what it is referred to, from wherever the caller likes.
        self._validator = _bounded(known)(_without_dialect(schema), registry=Registry())

    def __call__(self, value: Any) -> None:
        """Check a value; any thread may do so.

        Raises:
            ValidationError: When it does not fit.
            SlowSchemaError: When that cannot be said in time.
            RecursionError: When the schema leads back to itself without end.
        """
        reset = _until.set(time.monotonic() + CHECK_S)
        try:
            error = best_match(self._validator.iter_errors(value))
        finally:
            _until.reset(reset)
        if error is not None:
            raise error


@functools.cache
def _bounded(validator: Any) -> Any:
    ours: dict[str, _Keyword] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    keywords = {name: _with_time_limit(ours.get(name) or keyword) for name, keyword in validator.VALIDATORS.items()}
    return validators.extend(validator, keywords)  # type: ignore[no-untyped-call]  # it has no types


def _with_time_limit(keyword: _Keyword) -> _Keyword:
    def bounded(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError] | None:
        if time.monotonic() > _until.get():
            raise SlowSchemaError(
                f"The schema takes longer than {CHECK_S:g} seconds to check one answer; refer to fewer alternatives."
            )
        return keyword(validator, value, instance, schema)

    return bounded


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not _matches(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, subschema in patterns.items():
        for name, value in instance.items():
            if _matches(pattern, name):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extra = [
        name for name in instance if name not in known and not any(_matches(pattern, name) for pattern in patterns)
    ]
    if validator.is_type(allowed, "object"):
        for name in extra:
            yield from validator.descend(instance[name], allowed, path=name)
    elif not allowed and extra:
        listed = ", ".join(repr(name) for name in sorted(extra))
        yield ValidationError(f"Additional properties are not allowed: {listed}")


def _unique_items(validator: Any, unique: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    # The library compares each item with each other.
    if unique and validator.is_type(instance, "array"):
        items = {json.dumps(_with_whole_numbers(item), sort_keys=True) for item in instance}
        if len(items) < len(instance):
            yield ValidationError(f"{instance!r} has non-unique elements")


def _with_whole_numbers(value: Any) -> Any:
    """A value in which 1.0 is 1, as it is to JSON Schema."""
    if isinstance(value, dict):
        return {name: _with_whole_numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _matches(pattern: str, text: str) -> bool:
    remaining = min(PATTERN_S, _until.get() - time.monotonic())
    try:
        if remaining <= 0:
            raise TimeoutError
        # Other threads may work meanwhile.
        return compile_pattern(pattern).search(text, timeout=remaining, concurrent=True) is not None
    except TimeoutError:
        raise SlowSchemaError(
            f"The pattern {pattern!r} takes too long to be searched for; write it without a repeat inside a repeat."
        ) from None
    except (regex.error, ValueError, OverflowError) as error:
        raise SlowSchemaError(f"The pattern {pattern!r} cannot be searched for: {error}.") from None


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from value.items()
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _items(item)


def _unresolved(value: Any, resolver: Any, draft: Specification[Any], references: Collection[str]) -> str | None:
    """A reference that leads nowhere; None where there is none."""
    if isinstance(value, dict):
        resolver = resolver.in_subresource(draft.create_resource(value))
        for name in references:
            if isinstance(value.get(name), str) and not _resolves(value[name], resolver):
                return str(value[name])
    parts = value if isinstance(value, list) else _parts(value) if isinstance(value, dict) else ()
    below = (_unresolved(part, resolver, draft, references) for part in parts)
    return next((found for found in below if found is not None), None)


def _parts(schema: dict[str, Any]) -> Iterator[Any]:
    """What may be schemas right below one, or lists of them."""
    for keyword, item in schema.items():
        if keyword in _BY_NAME and isinstance(item, dict):
            yield from item.values()
        elif keyword not in _DATA:
            yield item


def _patterns(schema: Any) -> Iterator[str]:
    """Every pattern in a schema."""
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        if isinstance(schema.get("patternProperties"), dict):
            yield from schema["patternProperties"]
    for part in schema if isinstance(schema, list) else _parts(schema) if isinstance(schema, dict) else ():
        yield from _patterns(part)


def _resolves(reference: str, resolver: Any) -> bool:
    try:
        resolver.lookup(reference)
    except Unresolvable:
        return False
    return True


def _without_dialect(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_dialect(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept: dict[str, Any] = {}
    for keyword, item in value.items():
        if keyword in _BY_NAME and isinstance(item, dict):
            kept[keyword] = {name: _without_dialect(below) for name, below in item.items()}
        elif keyword != "$schema" or not isinstance(item, str):
            kept[keyword] = item if keyword in _DATA else _without_dialect(item)
    return kept
