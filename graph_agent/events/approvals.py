"""Events of approvals: of calls of the agent itself, of its delegates, and of its middleware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from graph_agent.events.types import StoredEvent, event

if TYPE_CHECKING:
    from graph_agent.approvals.decisions import Decided
    from graph_agent.approvals.requests import HeldCall

_SOURCES = ("delegation", "middleware")
"""Fields of approvals that do not decide on calls of the agent's own wave."""


def request_event(calls: Sequence[HeldCall], step: int, **source: str) -> StoredEvent:
    """Return the event of calls that wait for a person.

    Args:
        calls: The calls.
        step: The step they belong to.
        source: `delegate` and `delegation`, or `middleware`, if the calls wait there; none for the agent's own policy.
    """
    return event("approval_request", step, calls=list(calls), **source)


def decision_event(decided: Decided, step: int, **source: str) -> StoredEvent:
    """Return the event of a decision; arguments as for `request_event`."""
    call = decided.call
    fields: dict[str, Any] = {"id": call["id"], "name": call["name"], "decision": decided.type}
    if decided.type == "edit":
        fields["arguments"] = decided.arguments
        if decided.name != call["name"]:
            fields["edited_name"] = decided.name
    if decided.message is not None:
        fields["message"] = decided.message
    return event("approval_decision", step, **fields, decided_by=decided.by, **source)


def is_approval(entry: Mapping[str, Any]) -> bool:
    """Whether an event is an approval of any source."""
    return entry["type"] in ("approval_request", "approval_decision")


def is_own(entry: Mapping[str, Any], type_: Literal["approval_request", "approval_decision"]) -> bool:
    """Whether an event is an approval of this type that the agent's own policy asked for.

    Calls of delegates have ids of their own, which may equal those of the agent's calls.
    """
    return entry["type"] == type_ and not any(field in entry for field in _SOURCES)
