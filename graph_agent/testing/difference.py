"""Compares recorded values with new ones by JSON path, and pairs the calls of two waves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from graph_agent.parsing.call import canonical_arguments

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Absent:
    """The value of a path that a value does not have."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT: Final = Absent()


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """One place at which two JSON values differ."""

    path: str
    """JSON path of RFC 9535, such as `$.city` or `$.rooms[0]['check-in']`."""
    recorded: Any
    """The recorded value at the path; `ABSENT` if there is none."""
    now: Any
    """The new value at the path; `ABSENT` if there is none."""


def value_differences(recorded: Any, now: Any, path: str = "$") -> Iterator[ValueDifference]:
    """Yield the places at which two JSON values differ, in their order; none if they are equal.

    Members of an object may have any order. `1` equals `1.0`, and differs from `true`.

    Args:
        path: Path of the two values.
    """
    if isinstance(recorded, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys([*recorded, *now]):
            member = f"{path}.{name}" if _PLAIN_NAME.fullmatch(name) else f"{path}[{_quoted(name)}]"
            yield from value_differences(recorded.get(name, ABSENT), now.get(name, ABSENT), member)
    elif isinstance(recorded, list | tuple) and isinstance(now, list | tuple):
        for at in range(max(len(recorded), len(now))):
            one, other = (items[at] if at < len(items) else ABSENT for items in (recorded, now))
            yield from value_differences(one, other, f"{path}[{at}]")
    elif isinstance(recorded, bool) != isinstance(now, bool) or recorded != now:
        yield ValueDifference(path, recorded, now)


def _quoted(name: str) -> str:
    return "'" + json.dumps(name, ensure_ascii=False)[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"


@dataclass(frozen=True, slots=True)
class PairedCalls:
    """The calls of two waves, by position in each."""

    equal: tuple[tuple[int, int], ...]
    """Calls of the same name with equal arguments: recorded position, new position."""
    changed: tuple[tuple[int, int], ...]
    """Calls of the same name with different arguments."""
    missing: tuple[int, ...]
    """Positions of the recorded calls without a new one."""
    added: tuple[int, ...]
    """Positions of the new calls without a recorded one."""


def pair_calls(recorded: Sequence[tuple[str, Any]], now: Sequence[tuple[str, Any]]) -> PairedCalls:
    """Pair the calls of two waves as sets: their order and their ids do not matter.

    Calls of one name with different arguments are paired by the fewest differences.

    Args:
        recorded: Name and arguments of each recorded call.
        now: Name and arguments of each new call.
    """
    keys = [(name, canonical_arguments(arguments)) for name, arguments in now]
    left, equal, rest = list(range(len(now))), list[tuple[int, int]](), list[int]()
    for at, (name, arguments) in enumerate(recorded):
        key = name, canonical_arguments(arguments)
        found = next((other for other in left if keys[other] == key), None)
        if found is None:
            rest.append(at)
        else:
            left.remove(found)
            equal.append((at, found))
    distances = sorted(
        (sum(1 for _ in value_differences(recorded[at][1], now[other][1])), at, other)
        for at in rest
        for other in left
        if recorded[at][0] == now[other][0]
    )
    changed = list[tuple[int, int]]()
    for _, at, other in distances:
        if at in rest and other in left:
            rest.remove(at)
            left.remove(other)
            changed.append((at, other))
    return PairedCalls(tuple(equal), tuple(sorted(changed)), tuple(rest), tuple(left))
