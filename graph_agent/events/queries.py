"""What the calls of a wave came to, read from the history, where every output is whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from graph_agent._internal.text import text_of
from graph_agent.events.types import ResultStatus, StoredEvent
from graph_agent.events.values import value_of
from graph_agent.types import delegation_name

_ANSWERS = ("tool_result", "delegation_response")


def since_plan(events: Sequence[StoredEvent]) -> list[StoredEvent]:
    """The newest plan's event and all after it; empty where the newest input has no plan."""
    for index in range(len(events) - 1, -1, -1):
        if events[index]["type"] == "user_message":
            break
        if events[index]["type"] == "plan":
            return list(events[index:])
    return []


def is_structured(wave: Sequence[StoredEvent]) -> bool:
    """Whether a wave's arguments may hold references.

    Args:
        wave: The wave's events, its plan's first.
    """
    return bool(wave) and "planner" in wave[0]


def results_of_wave(events: Sequence[StoredEvent]) -> dict[str, Any]:
    """The results of the newest wave, by call id, as plain JSON.

    These are the values of `RunResult.results`; of content blocks that are no text alone, the text.
    """
    return {entry["id"]: _value(entry) for entry in _answers(events, "plan") if entry["status"] == "success"}


def recorded_ids(events: Sequence[StoredEvent]) -> set[str]:
    """The ids of the newest wave's calls that have an answer."""
    return {entry["id"] for entry in _answers(events, "plan")}


def answered_ids(events: Sequence[StoredEvent]) -> set[str]:
    """The ids of every call of the newest input that has an answer."""
    return {entry["id"] for entry in _answers(events, "user_message")}


def failed_ids(events: Sequence[StoredEvent]) -> set[str]:
    """The ids of the newest wave's calls that have an answer and no result."""
    return {entry["id"] for entry in _answers(events, "plan") if entry["status"] != "success"}


def answers_of_wave(events: Sequence[StoredEvent]) -> list[StoredEvent]:
    """The events that answer the calls of the newest wave, in call order."""
    return list(_answers(events, "plan"))[::-1]


def _answers(events: Sequence[StoredEvent], since: str) -> Iterator[StoredEvent]:
    for entry in reversed(events):
        if entry["type"] == since:
            return
        if entry["type"] in _ANSWERS:
            yield entry


def result_value(content: Any) -> Any:
    """What a reference to a result finds, where no more is known of it than its content.

    Args:
        content: Text, or content blocks.
    """
    return _value({"content": content})


def _value(entry: StoredEvent) -> Any:
    value = value_of(entry)
    # An image is no argument of a call; what it comes with, such as a caption, may be.
    return text_of(value) if value is entry["content"] and isinstance(value, list) else value


Outcome = Literal["finished", "failed", "unknown", "skipped"]

OUTCOMES: dict[ResultStatus, Outcome] = {
    "success": "finished",
    "error": "failed",
    "unknown": "unknown",
    "skipped": "skipped",
}
"""What a call came to, by the status of its result."""


def account(events: Sequence[StoredEvent]) -> dict[Outcome, list[str]]:
    """The newest input's calls by what they came to, each as its name, in order.

    Args:
        events: The session's history, oldest first.
    """
    found: dict[Outcome, list[str]] = {"finished": [], "failed": [], "unknown": [], "skipped": []}
    for entry in reversed(events):
        if entry["type"] == "user_message":
            break
        if entry["type"] == "tool_result":
            found[OUTCOMES[entry["status"]]].append(entry["name"])
        elif entry["type"] == "delegation_response":
            found[OUTCOMES[entry["status"]]].append(delegation_name(entry["target"]))
    return {outcome: names[::-1] for outcome, names in found.items()}
