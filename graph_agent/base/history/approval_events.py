"""Makes the events of approvals: what calls wait for, and what a person has decided.

`RevocationEvent`, for an approval of all calls of a kind that a person takes back, comes from a note, as feedback does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graph_agent.base.approvals.requests import HeldCall
from graph_agent.base.history.events import StoredEvent, event, seconds_since

if TYPE_CHECKING:
    from graph_agent.base.approvals.decisions import Decided


def request_event(calls: Sequence[HeldCall], step: int, **source: str) -> StoredEvent:
    """Return the `approval_request` event of calls that wait for a person's decision.

    Args:
        calls: The calls that wait.
        step: Number of the plan.
        source: Who asks, unless it is the agent's own policy: `delegate` and `delegation` (the name and the call's id),
            or `middleware` (its name).
    """
    return event("approval_request", step, calls=list(calls), **source)


def decision_event(decided: Decided, step: int, *, asked_at: str = "", **source: str) -> StoredEvent:
    """Return the `approval_decision` event of a person's decision.

    `arguments` are present for an edit only, `edited_name` if it renames the call, `message` and `always` if given.

    Args:
        decided: The decision.
        step: Number of the plan.
        asked_at: The `ts` of the request, from which `waited_s` is computed; empty to leave that field out.
        source: Who asked, as in `request_event`.
    """
    call = decided.call
    fields: dict[str, Any] = {"id": call["id"], "name": call["name"], "decision": decided.type}
    if decided.type == "edit":
        fields["arguments"] = decided.arguments
        if decided.name != call["name"]:
            fields["edited_name"] = decided.name
    if decided.message is not None:
        fields["message"] = decided.message
    if decided.always:
        fields["always"] = True
    if asked_at:
        fields["waited_s"] = seconds_since(asked_at)
    return event("approval_decision", step, **fields, decided_by=decided.by, **source)
