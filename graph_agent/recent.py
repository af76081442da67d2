"""The newest calls of an input, read from the end of the history for the search for loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from graph_agent.calls import fingerprint
from graph_agent.events import StoredEvent
from graph_agent.telling import call_of

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
        elif (call := named_call(entry, known)) is not None:
            passed += 1
            name, called = call
            marked = marks(name)
            if marked.get("poll"):
                continue
            if called not in in_wave:
                fingerprints.append(called)
            if entry["id"] in contents and marked.get("effect") != "write" and name not in in_wave:
                results.append((name, called, contents[entry["id"]]))
            in_wave.update(call)
    return RecentCalls(fingerprints[::-1], results[::-1])
