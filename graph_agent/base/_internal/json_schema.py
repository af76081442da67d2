"""Validates values against untrusted JSON schemas in bounded time.

Python's `re` may take years on a short text, and each level of `$ref` can double the work.
"""

from __future__ import annotations

import functools
import json
import math
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import regex
from jsonschema import Draft202012Validator, ValidationError, validators
from jsonschema.exceptions import best_match
from jsonschema_specifications import REGISTRY as SPECIFICATIONS  # type: ignore[import-untyped]  # it has no types
from referencing import Registry, Specification
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, specification_with

from graph_agent.base._compat import SubPattern, parse_pattern
from graph_agent.base.errors import ConfigError, SlowSchemaError

MOST_PARTS = 30_000
"""Maximum characters, sets and groups of a pattern in which each repeat counts as often as it repeats.

Each takes about 300 bytes of memory.
"""

_SPACED = re.compile(r"\(\?[a-zA-Z-]*x")


def check_pattern(pattern: str) -> None:
    """Check that a regular expression is valid and not too large, without compiling it, which may take minutes.

    Raises:
        ValueError: The pattern is invalid, too large, or uses the flag `x`.
        RecursionError: The pattern is nested too deeply.
        OverflowError: A repeat count is too large.
    """
    if _SPACED.search(pattern):
        # With this flag `re` and `regex` disagree on whether `a{ 9 }` is a repeat.
        raise ValueError(f"the flag x of the pattern {pattern!r} is not taken; write it without spaces and comments")
    try:
        parts = parse_pattern(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    if (size := _size(parts)) > MOST_PARTS:
        raise ValueError(
            f"the repeats of the pattern {pattern!r} come to {size} parts, of {MOST_PARTS} at most; repeat less"
        )


@functools.lru_cache(32)
def compile_pattern(pattern: str) -> regex.Pattern[str]:
    """Return a regular expression compiled by the package `regex`, whose searches can have a time limit; 32 are cached.

    Raises:
        ValueError: The pattern is invalid, too large, or uses the flag `x`.
        RecursionError: The pattern is nested too deeply.
        OverflowError: A repeat count is too large.
        regex.error: The pattern has syntax that `regex` does not support.
    """
    check_pattern(pattern)
    return regex.compile(pattern, cache_pattern=False)


def _size(parts: Any) -> int:
    """Return the number of characters, sets and groups of a parsed pattern, each counted as often as it repeats."""
    return sum(_repeats(given) * (_own_size(given) + sum(map(_size, _children(given)))) for _, given in parts)


def _repeats(given: Any) -> int:
    """Return how often the content of a part of a parsed pattern is expanded; 1 for a part that is no repeat.

    A repeat is `(least, most, what)`.
    """
    match given:
        case (int() as least, int() as most, what) if isinstance(what, SubPattern):
            return least + (int(most) > least)
    return 1


def _own_size(given: Any) -> int:
    """Return the size of a part of a parsed pattern without its children: the number of members of a set, otherwise
    1.
    """
    return len(given) if isinstance(given, list) else 1


def _children(given: Any) -> Iterator[Any]:
    """Yield the parsed patterns inside a part of a parsed pattern, at any level of its tuples and lists."""
    if isinstance(given, SubPattern):
        yield given
    elif isinstance(given, tuple | list):
        for one in given:
            yield from _children(one)


VALUE_S = 2.0
"""Maximum seconds for checking one value against its schema; with an ordinary schema it takes a few milliseconds."""
PATTERN_S = 0.5
"""Maximum seconds of one search for a pattern in a text."""

_REFERENCES = frozenset({"$ref", "$dynamicRef"})
_DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are data, even if these look like schemas."""
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
"""Keywords whose values are dicts of any names → schemas; such a name may look like a keyword."""

_META_URIS = [
    f"https://json-schema.org/draft/2020-12/{part}"
    for part in (
        "schema",
        *(f"meta/{vocabulary}" for vocabulary in ("core", "applicator", "unevaluated", "validation", "meta-data")),
        *("meta/format-annotation", "meta/content"),
    )
]
"""Addresses of the schema that describes schemas, and of its parts."""

_until: ContextVar[float] = ContextVar("until")
_Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]


class SchemaCheck:
    """Checks values against an untrusted JSON schema in bounded time; nothing is fetched.

    Args:
        schema: The schema; it is checked itself, in time linear in its size.
        name: Name of the schema in error messages.

    Raises:
        ConfigError: The schema is invalid, refers to something outside itself, or cannot be evaluated in bounded time.
    """

    def __init__(self, schema: dict[str, Any], name: str = "response_format") -> None:
        try:
            error = _schema_error(schema)
            for pattern in _patterns(schema) if error is None else ():
                check_pattern(pattern)
        except (RecursionError, OverflowError, ValueError) as fault:
            raise ConfigError(f"{name} is no JSON schema that can be used: {fault}.") from None
        if error is not None:
            raise ConfigError(f"{name} is no valid JSON schema: {error.message}.")
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
            # Crawled once here; otherwise the registry crawls for each `$ref` to an `$anchor`.
            root = Registry().with_resource(uri, resource).crawl().resolver(uri)
            unresolved = _unresolved(schema, root, draft, _REFERENCES & known.VALIDATORS.keys())
        except ValueError as error:
            raise ConfigError(f"{name} has an $id or $ref that is no address: {error}.") from None
        if unresolved is not None:
            raise ConfigError(f"{name} refers to {unresolved!r}, which is not in it; nothing is fetched.")
        # Below a nested `$schema` the library would use its own, unbounded keywords. Without a registry the library
        # would fetch references from arbitrary addresses.
        self._validator = _bounded(known)(_without_dialect(schema), registry=Registry())

    def __call__(self, value: Any) -> None:
        """Check a value; may be called from any thread.

        Raises:
            ValidationError: The value does not match the schema.
            SlowSchemaError: The check, or one pattern, takes longer than its limit.
            RecursionError: The schema refers to itself without end.
        """
        reset = _until.set(time.monotonic() + VALUE_S)
        try:
            error = best_match(self._validator.iter_errors(value))
        finally:
            _until.reset(reset)
        if error is not None:
            raise error

    def misfit(self, value: Any) -> str | None:
        """Return in words why a value does not match the schema, or cannot be checked in time; None if it matches."""
        try:
            self(value)
        except (ValidationError, SlowSchemaError) as error:
            return str(getattr(error, "message", error))
        except RecursionError:
            return "its schema refers to itself without an end, so that nothing fits it"
        return None


def _schema_error(schema: dict[str, Any]) -> ValidationError | None:
    """Return the error that makes a schema invalid; None if it is valid. Takes time linear in the schema's size."""
    reset = _until.set(math.inf)
    try:
        error: ValidationError | None = best_match(_meta_schema().iter_errors(schema))
        return error
    finally:
        _until.reset(reset)


@functools.cache
def _meta_schema() -> Any:
    """Return a validator that checks schemas themselves, with limits that the library's own lacks.

    The library compares all pairs of the types and names in a list. Formats are not checked, because Python may take
    minutes to compile their patterns.
    """
    # Without their `$schema`, at which the library would go over to its own keywords.
    resources = {uri: DRAFT202012.create_resource(_without_dialect(SPECIFICATIONS.contents(uri))) for uri in _META_URIS}
    meta = resources[_META_URIS[0]].contents
    return _bounded(Draft202012Validator)(meta, registry=Registry().with_resources(resources.items()).crawl())


@functools.cache
def _bounded(validator: Any) -> Any:
    """Return a subclass of a validator class of `jsonschema` that stops at the time limit in `_until`.

    Each keyword raises `SlowSchemaError` after the limit. `pattern`, `patternProperties`, `additionalProperties` and
    `uniqueItems` are the implementations of this module, because the library's may take unbounded time.
    """
    ours: dict[str, _Keyword] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    keywords = {name: _with_time_limit(ours.get(name) or keyword) for name, keyword in validator.VALIDATORS.items()}
    return validators.extend(validator, keywords)  # type: ignore[no-untyped-call]  # the library has no types


def _with_time_limit(keyword: _Keyword) -> _Keyword:
    """Return a keyword's implementation that first raises `SlowSchemaError` if the time of `_until` has passed."""

    def bounded(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError] | None:
        if time.monotonic() > _until.get():
            raise SlowSchemaError(
                f"The schema takes longer than {VALUE_S:g} seconds to check one answer; refer to fewer alternatives."
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
    # The library compares all pairs, in quadratic time.
    if unique and validator.is_type(instance, "array"):
        items = {json.dumps(_with_whole_numbers(item), sort_keys=True, default=repr) for item in instance}
        if len(items) < len(instance):
            yield ValidationError(f"{instance!r} has non-unique elements")


def _with_whole_numbers(value: Any) -> Any:
    """Replace floats such as 1.0 by integers at any level, because JSON Schema regards them as equal."""
    if isinstance(value, dict):
        return {name: _with_whole_numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _matches(pattern: str, text: str) -> bool:
    """Whether a pattern is found in a text.

    Raises:
        SlowSchemaError: The search takes too long, or the pattern cannot be compiled.
    """
    remaining = min(PATTERN_S, _until.get() - time.monotonic())
    try:
        if remaining <= 0:
            raise TimeoutError
        # `concurrent` releases the GIL during the search.
        return compile_pattern(pattern).search(text, timeout=remaining, concurrent=True) is not None
    except TimeoutError:
        raise SlowSchemaError(
            f"The pattern {pattern!r} takes too long to be searched for; write it without a repeat inside a repeat."
        ) from None
    except (regex.error, ValueError, OverflowError) as error:
        raise SlowSchemaError(f"The pattern {pattern!r} cannot be searched for: {error}.") from None


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the key and value of every dict in a value, at any level."""
    if isinstance(value, dict):
        yield from value.items()
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _items(item)


def _unresolved(value: Any, resolver: Any, draft: Specification[Any], references: Collection[str]) -> str | None:
    """Return the first reference in a schema that has no target; None if all have one.

    Args:
        value: The schema or a part of it.
        resolver: Looks up references, relative to the part around `value`.
        draft: The version of JSON Schema.
        references: The keywords whose values are references.
    """
    if isinstance(value, dict):
        resolver = resolver.in_subresource(draft.create_resource(value))
        for name in references:
            if isinstance(value.get(name), str) and not _resolves(value[name], resolver):
                return str(value[name])
    parts = value if isinstance(value, list) else _parts(value) if isinstance(value, dict) else ()
    below = (_unresolved(part, resolver, draft, references) for part in parts)
    return next((found for found in below if found is not None), None)


def _parts(schema: dict[str, Any]) -> Iterator[Any]:
    """Yield the values directly below a schema that may be schemas or lists of schemas."""
    for keyword, item in schema.items():
        if keyword in _BY_NAME and isinstance(item, dict):
            yield from item.values()
        elif keyword not in _DATA:
            yield item


def _patterns(schema: Any) -> Iterator[str]:
    """Yield the regular expressions in a schema, at any level."""
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
    """Return a copy of a schema without the keyword `$schema` at any level, so that no part of it changes the version.

    A property of this name is kept, and so are data, such as the value of `const`, and a `$schema` that is no text.
    """
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
