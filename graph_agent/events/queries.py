"""Queries over the history for the calls and results of the newest wave or input; outputs there are complete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from graph_agent._internal.text import text_of
from graph_agent.events.types import ResultStatus, StoredEvent
from graph_agent.events.values import value_of
from graph_agent.types import delegation_name

_ANSWERS = ("tool_result", "delegation_response")


def since_plan(events: Sequence[StoredEvent]) -> list[StoredEvent]:
    """Return the newest plan's event and all later ones; empty if the newest input has no plan."""
    for index in range(len(events) - 1, -1, -1):
        if events[index]["type"] == "user_message":
            break
        if events[index]["type"] == "plan":
            return list(events[index:])
    return []


def is_structured(wave: Sequence[StoredEvent]) -> bool:
    """Whether a wave's arguments may contain references.

    Args:
        wave: The wave's events, starting with its plan.
    """
    return bool(wave) and "planner" in wave[0]


def results_of_wave(events: Sequence[StoredEvent]) -> dict[str, Any]:
    """Return the results of the newest wave as plain JSON, by call id.

    These are the values of `RunResult.results`. Content blocks that include other types than text become their text.
    """
    return {entry["id"]: _value(entry) for entry in _answers(events, "plan") if entry["status"] == "success"}


def recorded_ids(events: Sequence[StoredEvent]) -> set[str]:
    """Return the ids of the newest wave's calls that have an answer."""
    return {entry["id"] for entry in _answers(events, "plan")}


def answered_ids(events: Sequence[StoredEvent]) -> set[str]:
    """Return the ids of the newest input's calls that have an answer."""
    return {entry["id"] for entry in _answers(events, "user_message")}


def failed_ids(events: Sequence[StoredEvent]) -> set[str]:
    """Return the ids of the newest wave's calls whose answer is not a success."""
    return {entry["id"] for entry in _answers(events, "plan") if entry["status"] != "success"}


def answers_of_wave(events: Sequence[StoredEvent]) -> list[StoredEvent]:
    """Return the events that answer the calls of the newest wave, in call order."""
    return list(_answers(events, "plan"))[::-1]


def _answers(events: Sequence[StoredEvent], since: str) -> Iterator[StoredEvent]:
    for entry in reversed(events):
        if entry["type"] == since:
            return
        if entry["type"] in _ANSWERS:
            yield entry


def result_value(content: Any) -> Any:
    """Return the value that a reference to a result resolves to, given only the result's content.

    Args:
        content: Text, or content blocks.
    """
    return _value({"content": content})


def _value(entry: StoredEvent) -> Any:
    value = value_of(entry)
    # An image cannot be an argument of a call; accompanying text such as a caption can.
    return text_of(value) if value is entry["content"] and isinstance(value, list) else value


CallOutcome = Literal["finished", "failed", "unknown", "skipped"]

OUTCOMES: dict[ResultStatus, CallOutcome] = {
    "success": "finished",
    "error": "failed",
    "unknown": "unknown",
    "skipped": "skipped",
}
"""Result status → outcome of the call."""


def account(events: Sequence[StoredEvent]) -> dict[CallOutcome, list[str]]:
    """Return the names of the newest input's calls by outcome, in call order.

    Args:
        events: The session's history, oldest first.
    """
    found: dict[CallOutcome, list[str]] = {"finished": [], "failed": [], "unknown": [], "skipped": []}
    for entry in reversed(events):
        if entry["type"] == "user_message":
            break
        if entry["type"] == "tool_result":
            found[OUTCOMES[entry["status"]]].append(entry["name"])
        elif entry["type"] == "delegation_response":
            found[OUTCOMES[entry["status"]]].append(delegation_name(entry["target"]))
    return {outcome: names[::-1] for outcome, names in found.items()}
