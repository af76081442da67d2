"""Approvals of a delegate's calls in the delegating session: the question, and the events of the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graph_agent.approvals.decisions import read_decisions
from graph_agent.approvals.requests import calls_of_request
from graph_agent.delegation import DelegationResult
from graph_agent.errors import DecisionError
from graph_agent.events.approvals import decision_event, request_event
from graph_agent.events.types import StoredEvent
from graph_agent.state.remote import RemoteTask
from graph_agent.types import Call, delegate_name


def question_value(call: Call, task: RemoteTask) -> dict[str, Any]:
    """Return the value of the interrupt that asks a delegate's question.

    An approval request keeps its shape; its descriptions name the delegate, for interfaces that show nothing else.

    Args:
        call: The delegation.
        task: The delegate's task.
    """
    delegate = delegate_name(call["name"])
    value: dict[str, Any] = {}
    if task["question"]:
        value = {"type": "delegation_input", "id": call["id"], "question": task["question"]}
    if (request := task.get("request")) is None:
        return {**value, "delegate": delegate}
    actions = [_with_delegate(action, delegate) for action in request["action_requests"]]
    path = _path(delegate, request)
    return {**value, **request, "action_requests": actions, "delegate": path, "delegation": call["id"]}


def approval_events(
    call: Call, task: RemoteTask | None, answer: Any, result: DelegationResult, step: int
) -> list[StoredEvent]:
    """Return the approval events that one run of a delegation adds to the history.

    Args:
        call: The delegation.
        task: The task that the run continued; None for the first run.
        answer: The person's answer to it; None for none.
        result: The result of the run.
        step: The step of the delegation.
    """
    delegate = delegate_name(call["name"])
    events = [_of_delegate(entry, call, step) for entry in result.approvals]
    waiting = result.waiting
    repeated = waiting is not None and is_repeated(waiting, task)
    if task is not None and task.get("recorded_here") and "request" in task and not repeated and answer is not None:
        source = {"delegate": _path(delegate, task["request"]), "delegation": call["id"]}
        try:
            decided = read_decisions(calls_of_request(task["request"]), answer)
        except DecisionError:
            decided = []  # the delegate has its own rules for answers
        events += [decision_event(each, step, **source) for each in decided]
    if waiting is not None and waiting.get("recorded_here") and "request" in waiting and not repeated:
        source = {"delegate": _path(delegate, waiting["request"]), "delegation": call["id"]}
        events.append(request_event(calls_of_request(waiting["request"]), step, **source))
    return events


def is_repeated(waiting: RemoteTask, before: RemoteTask | None) -> bool:
    """Whether a delegate asks its last question again, because the answer did not fit.

    Args:
        waiting: The delegate's task that waits now.
        before: The task that the answer was for; None for none.
    """
    request = waiting.get("request", {})
    if "error" in request:
        return True
    if before is None or not waiting["question"]:
        return False
    # A remote agent may give its reason as text only.
    return "call_ids" in request and request == before.get("request")


def asks_anew(entries: Sequence[StoredEvent], request: Mapping[str, Any]) -> bool:
    """Whether a delegate's own events lack an approval request, because a middleware of it asks."""
    ids = [call["id"] for call in calls_of_request(request)]
    recorded = [[call["id"] for call in entry["calls"]] for entry in entries if entry["type"] == "approval_request"]
    return "call_ids" not in request and (not recorded or recorded[-1] != ids)


def _of_delegate(entry: StoredEvent, call: Call, step: int) -> StoredEvent:
    path = _path(delegate_name(call["name"]), entry)
    return {**entry, "step": step, "delegate": path, "delegation": call["id"]}


def _path(delegate: str, inner: Mapping[str, Any]) -> str:
    nested = inner.get("delegate")
    return f"{delegate}/{nested}" if isinstance(nested, str) else delegate


def _with_delegate(action: Mapping[str, Any], delegate: str) -> dict[str, Any]:
    described = action.get("description")
    return {**action, "description": f"Delegate {delegate}: {described}" if described else f"Delegate {delegate}"}
