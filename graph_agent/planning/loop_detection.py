"""Finding out that a model repeats itself: pure, and O(window) however long the history is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

REPEATS = 3
"""How many times in a row a pattern must be seen to count; twice may be a retry."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A pattern of calls that repeats at the end of a history."""

    pattern: tuple[str, ...]
    """One period, as fingerprints, oldest first; its last entry is the newest call."""
    count: int
    """How many times in a row the whole pattern stands at the end, within the window; 2 at least."""
    key: str
    """12 hexadecimal digits that name the pattern wherever in it the history ends: a-b-a-b and b-a-b-a are one loop."""


def find_loop(fingerprints: Sequence[str], *, window: int, max_period: int) -> Loop | None:
    """Find the shortest pattern that repeats at the end of a history.

    A pattern counts when it stands there `REPEATS` times in a row. Where the window is too short for that, it counts
    when it fills the window, and that holds it twice at least; the window need not be a multiple of the period.

    Args:
        fingerprints: What was called, oldest first; equal strings are equal calls. Only the end is looked at.
        window: How many of the last calls are looked at; 2 at least.
        max_period: The longest pattern that counts, in calls.

    Returns:
        The loop, or None. The work is at most `window * max_period` comparisons.
    """
    recent = fingerprints[-window:]
    for period in range(1, max_period + 1):
        if (length := _repetition(recent, period, window)) is not None:
            pattern = tuple(recent[-period:])
            return Loop(pattern, length // period, _key(pattern))
    return None


def repetitions(values: Sequence[Any], period: int, *, window: int) -> int:
    """How many times a pattern of values stands in a row at the end; 0 where that is fewer than `find_loop` demands.

    Args:
        values: What each call gave, oldest first, compared with `==`.
        period: The length of the pattern.
        window: As for `find_loop`.
    """
    return (_repetition(values[-window:], period, window) or 0) // period


def unchanging(results: Sequence[tuple[str, str, Any]], *, window: int, told: Collection[str] = ()) -> str | None:
    """Find a tool whose last `REPEATS` calls all differed in their arguments and all gave the very same result.

    This is no loop: three searches may find nothing for three reasons, and three writes may all succeed.

    Args:
        results: `(tool, fingerprint of its arguments, result)` of each call, oldest first. Results are compared with
            `==`, so a long one is best given as it is and not hashed. Calls of other tools may stand between.
        window: How many of the last entries are looked at.
        told: Tools to skip, because they have been reported.

    Returns:
        The tool's name, the most recently called one's if there are several; None if there is none.
    """
    calls: dict[str, list[tuple[str, Any]]] = {}
    for tool, arguments, result in reversed(results[-window:]):
        calls.setdefault(tool, []).append((arguments, result))
    for tool, newest_first in calls.items():
        last = newest_first[:REPEATS]
        differ = len({arguments for arguments, _ in last}) == REPEATS
        if tool not in told and differ and all(result == last[0][1] for _, result in last):
            return tool
    return None


def _repetition(recent: Sequence[Any], period: int, window: int) -> int | None:
    """How many of the last entries repeat with a period; None where they are too few to count."""
    start = len(recent) - period
    while start > 0 and recent[start - 1] == recent[start - 1 + period]:
        start -= 1
    length = len(recent) - max(start, 0)
    enough = REPEATS * period if REPEATS * period <= window else max(window, 2 * period)
    return length if length >= enough else None


def _key(pattern: tuple[str, ...]) -> str:
    first = min(pattern[i:] + pattern[:i] for i in range(len(pattern)))
    return hashlib.sha256(json.dumps(first).encode()).hexdigest()[:12]
