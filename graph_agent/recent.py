"""The newest calls of an input, read from the end of the history for the search for loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from graph_agent.calls import fingerprint
from graph_agent.events import StoredEvent
from graph_agent.telling import call_of

_POLLS_PASSED = 8
"""How many windows of calls are passed over at most, so that an input of nothing but polls is not read whole."""


class RecentCalls(NamedTuple):
    """The newest calls of an input, oldest first, those of polling tools left out."""

    fingerprints: list[str]
    """For `find_loop`."""
    results: list[tuple[str, str, Any]]
    """For `unchanging`: `(name, fingerprint, content)` of those that have a result and are not marked as writing."""


def recent_calls(events: Sequence[StoredEvent], marks: Callable[[str], Mapping[str, Any]], window: int) -> RecentCalls:
    """Read the last calls of the newest input, delegations included.

    A model goes round in a circle from one wave to the next: equal calls of one wave count once, and of each tool's
    results in a wave the last one does.

    A tool marked `poll` is meant to be asked again, so its calls are left out. One marked `effect: "write"` says the
    same after each success, so its results are; one without a mark is compared, as a warning is all that follows.

    Args:
        events: The stored history, newest last; it is read from its end, as far back as needed and no further.
        marks: Gives the marks of a tool by its name; empty for an unknown one.
        window: How many calls are read at most.
    """
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
            called = fingerprint(call)
            if called not in in_wave:
                fingerprints.append(called)
            if call["id"] in contents and marked.get("effect") != "write" and call["name"] not in in_wave:
                results.append((call["name"], called, contents[call["id"]]))
            in_wave |= {called, call["name"]}
    return RecentCalls(fingerprints[::-1], results[::-1])
