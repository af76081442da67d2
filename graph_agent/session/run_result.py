"""Results of runs, read from the state of their session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from langgraph.types import Interrupt, StateSnapshot

from graph_agent._internal.text import text_of
from graph_agent.approvals.requests import request_of
from graph_agent.events.approvals import is_own
from graph_agent.events.calls import call_name
from graph_agent.events.types import StoredEvent, value_of
from graph_agent.tools.client import CLIENT_CALL
from graph_agent.types import NO_USAGE, CutOff, SessionStatus, StopReason, Usage

Waiting = Literal["approval", "client_tool", "answer"]
"""What a session waits for: decisions on calls, results of the caller's own tools, or the answer to a question."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one input."""

    answer: str
    """The answer's text; for a failed run, the failure and the work done. Empty only while it waits for a person."""
    status: SessionStatus
    """The session's status after the run."""
    stop_reason: StopReason | None
    """Why it stopped; None while it waits for a person."""
    action: str
    """The `action` of the last plan; empty without a plan."""
    reasoning: str
    """The text of the last plan, apart from its calls."""
    results: dict[str, Any]
    """Call id → the result's value as plain JSON, `{"error": …}` with its text for a call that failed.

    The value is the tool's return value: a Python list, dict, number, None, pydantic model or dataclass, the structured
    content of an MCP tool, or text, even if the text looks like JSON. A reference `${id.path}` yields the same value.
    Content blocks that are not all text are a list of blocks.

    If a model reuses an id, its further calls have the keys `<id>#2`, `<id>#3`, in the order planned.
    """
    iterations: int
    """Waves run."""
    usage: Usage
    """Tokens and model calls of the input, those of hooks and delegates included."""
    pending: list[dict[str, Any]]
    """Unfinished calls: planned calls without a result, and calls that a stop prevented from starting."""
    interrupts: list[Interrupt]
    """Open interrupts; answer them with `Session.resume`."""
    structured_response: Any = None
    """The answer as an instance of the class that is the agent's `response_format`; plain JSON for a JSON schema."""
    cost: float | None = None
    """Cost of its model calls, in the price table's currency; None without prices."""
    error: str = ""
    """One sentence for a person; empty unless something failed for good."""
    truncated: CutOff | None = None
    """Why the answer was cut off: `length`, `content_filter`, or `interrupted` by the provider; None if complete."""
    state: dict[str, Any] = field(default_factory=dict)
    """The agent's own state fields after the run (see `state_schema`), those that have a value."""
    follow_ups: tuple[RunResult, ...] = ()
    """Results of the follow-ups that the same call ran after this input, in order."""

    @property
    def waiting(self) -> Waiting | None:
        """What the session waits for; None if it does not wait."""
        return waiting_for(self.interrupts)


def run_result(state: StateSnapshot, fields: Sequence[str] = ()) -> RunResult:
    """Read a session's state as the result of its newest input.

    Args:
        state: The state.
        fields: The own state fields of the agent that belong to its output.
    """
    values = state.values
    events = since_last_input(values.get("events", []))
    plan = next((entry for entry in reversed(events) if entry["type"] == "plan"), {})
    answer = next((entry for entry in reversed(events) if entry["type"] == "agent_response"), {})
    error = next((entry["message"] for entry in reversed(events) if entry["type"] == "error"), "")
    calls = planned_calls(events)
    stopped = values.get("stop_reason") not in (None, "completed")
    # Before the first plan is stored the channel holds an empty mapping.
    usage = values.get("usage") or NO_USAGE
    return RunResult(
        answer=text_of(answer.get("content", "")),
        status=SessionStatus(values.get("status", SessionStatus.CREATED)),
        stop_reason=values.get("stop_reason"),
        action=plan.get("action", ""),
        reasoning=plan.get("reasoning", ""),
        results=_results(calls),
        iterations=values.get("loop", {}).get("waves", 0),
        usage=without_cost(usage),
        cost=usage.get("cost"),
        pending=[call.planned for call in calls if call.result is None or (stopped and call.was_skipped)],
        interrupts=open_interrupts(state),
        structured_response=values.get("structured_response"),
        error=error,
        truncated=answer.get("truncated"),
        state={name: values[name] for name in fields if name in values},
    )


@dataclass(slots=True)
class PlannedCall:
    """A call of a plan, and its state so far."""

    planned: dict[str, Any]
    """The call in the plan event: its `id` and `name`."""
    ready: bool = False
    """Whether it was made ready to run."""
    result: StoredEvent | None = None
    """The event of its result; None for none yet."""
    newest: bool = True
    """Whether it belongs to the newest plan."""
    rejected: bool = False
    """Whether a person rejected it."""

    @property
    def was_skipped(self) -> bool:
        """Whether it belongs to the newest plan and was skipped, other than by a person's rejection."""
        return self.newest and not self.rejected and self.result is not None and self.result["status"] == "skipped"


def planned_calls(events: Sequence[StoredEvent]) -> list[PlannedCall]:
    """Return the calls of one input's plans, in order.

    A later plan may reuse an id; later events of that id then belong to the later call.

    Args:
        events: The input's events, oldest first.
    """
    calls: list[PlannedCall] = []
    by_id: dict[str, PlannedCall] = {}
    for entry in events:
        if entry["type"] == "plan":
            for call in calls:
                call.newest = False
            planned = [PlannedCall(call) for call in entry["calls"]]
            calls += planned
            by_id |= {call.planned["id"]: call for call in planned}
        elif is_own(entry, "approval_decision") and (decided := by_id.get(entry["id"])) is not None:
            decided.rejected = entry["decision"] == "reject"
        elif (name := call_name(entry)) is not None:
            # A person may have added the call to the plan, or replaced its tool.
            named = {"id": entry["id"], "name": name}
            if (known := by_id.get(entry["id"])) is None:
                known = by_id[entry["id"]] = PlannedCall(named)
                calls.append(known)
            known.planned = {**known.planned, **named}
            if entry["type"] in ("tool_call", "delegation_request"):
                known.ready = True
            else:
                known.result = entry
    return calls


def _results(calls: Sequence[PlannedCall]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    times: Counter[str] = Counter()
    for call in calls:
        id_ = call.planned["id"]
        times[id_] += 1
        if (result := call.result) is not None:
            key = id_ if times[id_] == 1 else f"{id_}#{times[id_]}"
            results[key] = value_of(result) if result["status"] == "success" else {"error": text_of(result["content"])}
    return results


def open_interrupts(state: StateSnapshot) -> list[Interrupt]:
    """Return the open interrupts, excluding those of finished calls."""
    return [interrupt for task in state.tasks if task.result is None for interrupt in task.interrupts]


def waiting_for(interrupts: Sequence[Interrupt]) -> Waiting | None:
    """Return what open interrupts wait for, the first of `Waiting` that applies; None without interrupts."""
    if not interrupts:
        return None
    if any(request_of(each) is not None for each in interrupts):
        return "approval"
    is_client_call = [isinstance(each.value, dict) and each.value.get("type") == CLIENT_CALL for each in interrupts]
    return "client_tool" if any(is_client_call) else "answer"


def without_cost(usage: Usage) -> Usage:
    """Return tokens and model calls only."""
    return {
        "input_tokens": usage["input_tokens"],
        "output_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
        "model_calls": usage["model_calls"],
    }


def since_last_input(events: Sequence[StoredEvent]) -> list[StoredEvent]:
    """Return the events of the newest input, its user message first."""
    return list(events[input_at(events) :])


def input_at(events: Sequence[StoredEvent]) -> int:
    """Return the index of the newest input's user message; 0 without one."""
    for index in range(len(events) - 1, -1, -1):
        if events[index]["type"] == "user_message":
            return index
    return 0
