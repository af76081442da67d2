"""Regular expressions that anybody may have written, compiled to a size that is bounded.

What searches in bounded time writes each repeat out as often as it must occur: `(?:(?:a{999}){999}){999}` would take
all memory there is, before anything is searched.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import regex

from graph_agent._compat import SubPattern, parse_pattern

MOST_PARTS = 30_000
"""Characters, sets and groups that a pattern may come to with its repeats written out; each takes some 300 bytes."""

_SPACED = re.compile(r"\(\?[a-zA-Z-]*x")


def check_pattern(pattern: str) -> None:
    """Check that a pattern is one, and not too large; nothing is compiled.

    Raises:
        ValueError: When it is not.
        RecursionError: When it is nested too deeply.
        OverflowError: When it repeats something more often than can be counted.
    """
    if _SPACED.search(pattern):
        # In such, `a{ 9 }` is a repeat to one library and no repeat to the other.
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
    """A pattern that can be searched for in bounded time.

    Raises:
        ValueError, RecursionError, OverflowError: As for `check_pattern`.
        regex.error: When it is one of a kind that cannot be searched for.
    """
    check_pattern(pattern)
    return regex.compile(pattern, cache_pattern=False)


def _size(parts: Any) -> int:
    return sum(_repeats(given) * (_own_size(given) + sum(map(_size, _children(given)))) for _, given in parts)


def _repeats(given: Any) -> int:
    """How often what a part holds is written out: a repeat is `(least, most, what)`."""
    match given:
        case (int() as least, int() as most, what) if isinstance(what, SubPattern):
            return least + (int(most) > least)
    return 1


def _own_size(given: Any) -> int:
    """What a part takes itself: a set is the list of what is in it."""
    return len(given) if isinstance(given, list) else 1


def _children(given: Any) -> Iterator[Any]:
    if isinstance(given, SubPattern):
        yield given
    elif isinstance(given, tuple | list):
        for one in given:
            yield from _children(one)
