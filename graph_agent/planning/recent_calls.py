"""The newest calls of an input, read from the end of the history for the search for loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.utils.utils import LC_AUTO_PREFIX

from graph_agent.calls import fingerprint
from graph_agent.events.calls import call_of
from graph_agent.events.types import StoredEvent

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
