"""Finding out that a model repeats itself: pure, and O(window) however long the history is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from langchain_core.utils.utils import LC_AUTO_PREFIX

from graph_agent.calls import fingerprint
from graph_agent.events.calls import call_of
from graph_agent.events.types import StoredEvent

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


_POLLS_PASSED = 8
"""How many windows of calls are passed over at most, so that an input of nothing but polls is not read whole."""

_KNOWN = 1024
"""Fingerprints that are remembered at most."""


class RecentCalls(NamedTuple):
    """The newest calls of an input, oldest first, those of polling tools left out."""

    fingerprints: list[str]
    """For `find_loop`."""
    outcomes: list[tuple[Any, ...]]
    """For `repetitions`: what each of them gave, `(status, content)` of every equal call of the wave."""
    results: list[tuple[str, str, Any]]
    """For `unchanging`: `(name, fingerprint, (status, content))` of the last call of each tool in each wave."""
    newest_wave: frozenset[str]
    """Fingerprints of the newest plan's calls."""


Known = dict[int, tuple[Any, str, str]]
"""Identity of an event → the event, which keeps its identity, and its call's name and fingerprint."""


def named_call(entry: StoredEvent, known: Known) -> tuple[str, str] | None:
    """The name and the fingerprint of an event's call, worked out once; None for an event of another kind.

    Args:
        entry: The event.
        known: What is known, which is added to.
    """
    found = known.get(id(entry))
    if found is None:
        call = call_of(entry)
        if call is None:
            return None
        if len(known) >= _KNOWN:
            known.clear()
        found = known[id(entry)] = entry, call["name"], fingerprint(call)
    return found[1:]


def recent_calls(
    events: Sequence[StoredEvent],
    marks: Callable[[str], Mapping[str, Any]],
    window: int,
    known: Known | None = None,
) -> RecentCalls:
    """Read the last calls of the newest input, delegations included.

    A model repeats itself from one wave to the next: equal calls of one wave count once, with all their results, and of
    each tool's results in a wave the last one counts. Calls of a tool marked `poll` are left out: it is made to be
    called again.

    Args:
        events: The stored history, newest last; it is read from its end, as far back as needed and no further.
        marks: Gives the marks of a tool by its name; empty for an unknown one.
        window: How many calls are read at most.
        known: Fingerprints of earlier looks at the same events; added to. None to remember nothing.
    """
    known = {} if known is None else known
    fingerprints: list[str] = []
    outcomes: list[tuple[Any, ...]] = []
    results: list[tuple[str, str, Any]] = []
    given: dict[str, tuple[str, Any]] = {}
    newest_wave: frozenset[str] | None = None
    place: dict[str, int] = {}
    tools: set[str] = set()
    passed = 0
    for entry in reversed(events):
        kind = entry["type"]
        if kind == "user_message" or len(fingerprints) == window or passed == _POLLS_PASSED * window:
            break
        if kind == "plan":
            newest_wave = frozenset(place) if newest_wave is None else newest_wave
            place, tools = {}, set()
        elif kind in ("tool_result", "delegation_response"):
            given[entry["id"]] = entry["status"], _comparable(entry["content"])
        elif (call := named_call(entry, known)) is not None:
            passed += 1
            name, called = call
            if marks(name).get("poll"):
                continue
            result = given.pop(entry["id"], None)
            gave = () if result is None else (result,)
            if called in place:
                outcomes[place[called]] += gave
            else:
                place[called] = len(fingerprints)
                fingerprints.append(called)
                outcomes.append(gave)
            if result is not None and name not in tools:
                results.append((name, called, result))
            tools.add(name)
    newest_wave = frozenset(place) if newest_wave is None else newest_wave
    return RecentCalls(fingerprints[::-1], outcomes[::-1], results[::-1], newest_wave)


def _comparable(content: Any) -> Any:
    """A result without the ids that LangChain gives to content blocks, which differ each time."""
    if not isinstance(content, list):
        return content
    return [
        {key: value for key, value in block.items() if key != "id" or not str(value).startswith(LC_AUTO_PREFIX)}
        if isinstance(block, dict)
        else block
        for block in content
    ]
