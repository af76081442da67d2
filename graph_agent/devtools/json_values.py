"""Compares two JSON values by JSON path; the first may have matchers.

A matcher is an object with one key that begins with `$`, such as `{"$contains": "Bergen"}`; it matches many values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from graph_agent.base._internal.text import common_length, printable
from graph_agent.base.errors import ConfigError

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHOWN_CHARS = 60
"""Maximum characters of a value in a message."""
_CONTEXT_CHARS = 20
"""Characters before the difference in a value that is cut."""


class Absent:
    """The type of `ABSENT`, which stands for a value that does not exist; None is JSON's null."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT: Final = Absent()


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """One place at which two JSON values differ."""

    path: str
    """JSON path of RFC 9535, such as `$.city` or `$.rooms[0]['check-in']`."""
    recorded: Any
    """The recorded or expected value at the path; `ABSENT` if there is none."""
    now: Any
    """The new value at the path; `ABSENT` if there is none."""


def value_differences(
    recorded: Any, now: Any, path: str = "$", *, matches: bool = False, partial: bool = False
) -> Iterator[ValueDifference]:
    """Yield the places at which two JSON values differ, in the order of the recorded one; nothing if they are equal.

    Members of an object may have any order. `1` equals `1.0`, and differs from `true`. A Python object that is equal to
    the new value, such as `unittest.mock.ANY`, equals it. Lists are compared index by index. `ABSENT` differs from
    every value.

    Args:
        recorded: The recorded or expected value; `ABSENT` if there is none.
        now: The new value; `ABSENT` if there is none.
        path: JSON path of both values, with which the paths of differences begin.
        matches: Whether the recorded value, or one within it, may be a matcher: `{$any: true}`, `{$matches: PATTERN}`,
            `{$contains: TEXT}`, `{$schema: {…}}` or `{$partial: {…}}`.
        partial: Whether the new object may have further members; objects within it may not.

    Raises:
        ValueError: For an invalid matcher.
    """
    if matches and (matcher := _matcher_in(recorded)) is not None:
        kind, given = matcher
        if kind == "$partial":
            yield from value_differences(given, now, path, matches=True, partial=True)
        elif now is ABSENT or not _fits(kind, given, now):
            yield ValueDifference(path, recorded, now)
    elif isinstance(recorded, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys([*recorded, *(() if partial else now)]):
            member = f"{path}.{name}" if _PLAIN_NAME.fullmatch(str(name)) else f"{path}[{_quoted(str(name))}]"
            yield from value_differences(recorded.get(name, ABSENT), now.get(name, ABSENT), member, matches=matches)
    elif isinstance(recorded, list | tuple) and isinstance(now, list | tuple):
        for at in range(max(len(recorded), len(now))):
            one, other = (items[at] if at < len(items) else ABSENT for items in (recorded, now))
            yield from value_differences(one, other, f"{path}[{at}]", matches=matches)
    elif not _are_equal(recorded, now):
        yield ValueDifference(path, recorded, now)


def _are_equal(recorded: Any, now: Any) -> bool:
    """Whether two values that are not both objects or both lists are equal, as JSON: 1 equals 1.0, and not true.

    A value that is absent (`ABSENT`) equals nothing, not even `ANY`.
    """
    if recorded is ABSENT or now is ABSENT:
        return False  # not even to `ANY`
    # In JSON, true is no number.
    is_other_kind = isinstance(recorded, int | float) and isinstance(recorded, bool) != isinstance(now, bool)
    return bool(recorded == now) and not is_other_kind


def _quoted(name: str) -> str:
    """Return the name of a member in single quotes, escaped as in a JSON path."""
    return "'" + json.dumps(name, ensure_ascii=False)[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"


def shown_values(recorded: Any, now: Any) -> tuple[str, str]:
    """Return two values as JSON, for a message, each in one line of at most `_SHOWN_CHARS` characters.

    Of long values, the part is shown where they begin to differ, with `…` where something is cut. `ABSENT` is
    `nothing`.
    """
    one, other = (repr(each) if each is ABSENT else json.dumps(each, ensure_ascii=False) for each in (recorded, now))
    first = max(0, common_length(one, other) - _CONTEXT_CHARS) if max(len(one), len(other)) > _SHOWN_CHARS else 0

    def cut(text: str) -> str:
        """Return the part of a text that is shown."""
        part = text[first : first + _SHOWN_CHARS]
        return printable(f"{'…' if first else ''}{part}{'…' if first + _SHOWN_CHARS < len(text) else ''}")

    return cut(one), cut(other)


def check_matchers(expected: Any) -> None:
    """Check the matchers in a value, at any level.

    Raises `ValueError` if one is unknown, or its pattern or schema is invalid.
    """
    matcher = _matcher_in(expected)
    if matcher is not None and matcher[0] != "$partial":
        kind, given = matcher
        try:
            _fits(kind, given, "")
        except (ConfigError, re.error, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{{{kind}: {given!r}}}: {error}") from None
        return
    if isinstance(expected, Mapping):
        expected = [*expected.values()]
    for each in expected if isinstance(expected, list | tuple) else ():
        check_matchers(each)


def _matcher_in(expected: Any) -> tuple[str, Any] | None:
    """Return kind and value of a matcher, such as `("$contains", "Bergen")`; None if the value is not a matcher.

    A matcher is a mapping of one key that begins with `$`; whether its kind exists is not checked.
    """
    if not isinstance(expected, Mapping) or len(expected) != 1:
        return None
    ((kind, given),) = expected.items()
    return (kind, given) if isinstance(kind, str) and kind.startswith("$") else None


def _fits(kind: str, given: Any, actual: Any) -> bool:
    """Whether the value `actual` matches the matcher of a kind, such as `$contains`, with its value `given`.

    Raises `ValueError` if the kind is unknown.
    """
    if kind not in _MATCHERS:
        raise ValueError(f"{kind!r} is no matcher; write {', '.join(_MATCHERS)} or $partial")
    return _MATCHERS[kind](given, actual)


def _fits_schema(schema: Any, actual: Any) -> bool:
    """Whether the value `actual` is valid for a JSON schema; False if the check takes too long.

    Raises `ConfigError` if the schema is invalid.
    """
    # Imported here: most comparisons need no schema.
    from graph_agent.base._internal.json_schema import SchemaCheck

    return SchemaCheck(schema, "$schema").misfit(actual) is None


_MATCHERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "$any": lambda given, actual: True,
    "$matches": lambda given, actual: isinstance(actual, str) and re.search(given, actual) is not None,
    "$contains": lambda given, actual: isinstance(actual, str | list) and given in actual,
    "$schema": _fits_schema,
}
"""Kind of a matcher → function of its value and the actual value."""
