"""Compilation of untrusted regular expressions to a bounded size.

The `regex` library, whose searches have a timeout, expands each repeat to its minimum count: compiling
`(?:(?:a{999}){999}){999}` would exhaust the memory before any search.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import regex

from graph_agent._compat import SubPattern, parse_pattern

MOST_PARTS = 30_000
"""Maximum characters, sets and groups of a pattern with expanded repeats; each takes about 300 bytes."""

_SPACED = re.compile(r"\(\?[a-zA-Z-]*x")


def check_pattern(pattern: str) -> None:
    """Check, without compiling, that a pattern is valid and not too large.

    Raises:
        ValueError: If it is invalid or too large.
        RecursionError: If it is nested too deeply.
        OverflowError: If a repeat count is too large.
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
    """Compile a pattern for searches in bounded time.

    Raises:
        ValueError, RecursionError, OverflowError: As for `check_pattern`.
        regex.error: If the `regex` library does not support it.
    """
    check_pattern(pattern)
    return regex.compile(pattern, cache_pattern=False)


def _size(parts: Any) -> int:
    return sum(_repeats(given) * (_own_size(given) + sum(map(_size, _children(given)))) for _, given in parts)


def _repeats(given: Any) -> int:
    """Number of expanded copies of a part's content: a repeat is `(least, most, what)`."""
    match given:
        case (int() as least, int() as most, what) if isinstance(what, SubPattern):
            return least + (int(most) > least)
    return 1


def _own_size(given: Any) -> int:
    """Size of a part without its children: a set is the list of its members."""
    return len(given) if isinstance(given, list) else 1


def _children(given: Any) -> Iterator[Any]:
    if isinstance(given, SubPattern):
        yield given
    elif isinstance(given, tuple | list):
        for one in given:
            yield from _children(one)
