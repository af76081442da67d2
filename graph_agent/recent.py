"""The newest calls of an input, read from the end of the history for the search for loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from graph_agent.calls import fingerprint
from graph_agent.events import StoredEvent
from graph_agent.telling import call_of
from graph_agent.types import Call

_POLLS_PASSED = 8
"""How many windows of calls are passed over at most, so that an input of nothing but polls is not read whole."""

_KNOWN = 1024
"""Fingerprints that are remembered at most."""


class RecentCalls(NamedTuple):
    """The newest calls of an input, oldest first, those of polling tools left out."""

    fingerprints: list[str]
    """For `find_loop`."""
    results: list[tuple[str, str, Any]]
    """For `unchanging`: `(name, fingerprint, content)` of those that have a result and are not marked as writing."""


Known = dict[int, tuple[Any, str]]
"""Identity of an event → the event, which keeps its identity, and the fingerprint of its call."""


def fingerprint_of(entry: StoredEvent, call: Call, known: Known) -> str:
    """The fingerprint of an event's call, worked out once.

    Args:
        entry: The event.
        call: Its call.
        known: What is known, which is added to.
    """
    found = known.get(id(entry))
    if found is not None:
        return found[1]
    if len(known) >= _KNOWN:
        known.clear()
    known[id(entry)] = entry, (called := fingerprint(call))
    return called


def recent_calls(
    events: Sequence[StoredEvent],
    marks: Callable[[str], Mapping[str, Any]],
    window: int,
    known: Known | None = None,
) -> RecentCalls:
    """Read the last calls of the newest input, delegations included.

    A model goes round in a circle from one wave to the next: equal calls of one wave count once, and of each tool's
    results in a wave the last one does.

    A tool marked `poll` is meant to be asked again, so its calls are left out. One marked `effect: "write"` says the
    same after each success, so its results are; one without a mark is compared, as a warning is all that follows.

    Args:
        events: The stored history, newest last; it is read from its end, as far back as needed and no further.
        marks: Gives the marks of a tool by its name; empty for an unknown one.
        window: How many calls are read at most.
        known: Fingerprints of earlier looks at the same events; added to. None to remember nothing.
    """
    known = {} if known is None else known
    fingerprints: list[str] = []
    results: list[tuple[str, str, Any]] = []
    contents: dict[str, Any] = {}
    in_wave: set[str] = set()
    passed = 0
    for entry in reversed(events):
        kind = entry["type"]
        if kind == "user_message" or len(fingerprints) == window or passed == _POLLS_PASSED * window:
            break
        if kind == "plan":
            in_wave.clear()
        elif kind in ("tool_result", "delegation_response"):
            contents[entry["id"]] = entry["content"]
        elif (call := call_of(entry)) is not None:
            passed += 1
            marked = marks(call["name"])
            if marked.get("poll"):
                continue
            called = fingerprint_of(entry, call, known)
            if called not in in_wave:
                fingerprints.append(called)
            if call["id"] in contents and marked.get("effect") != "write" and call["name"] not in in_wave:
                results.append((call["name"], called, contents[call["id"]]))
            in_wave |= {called, call["name"]}
    return RecentCalls(fingerprints[::-1], results[::-1])
