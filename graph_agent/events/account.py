"""What became of an input's calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from graph_agent.events.types import ResultStatus, StoredEvent
from graph_agent.types import delegation_name

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
