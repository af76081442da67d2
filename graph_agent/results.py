"""What a run came to, and the parts of its stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from langgraph.types import Interrupt, StateSnapshot

from graph_agent.events import Event, StoredEvent
from graph_agent.state import NOT_BEGUN
from graph_agent.text import text_of
from graph_agent.types import NO_USAGE, SessionStatus, StopReason, Usage


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one input came to."""

    answer: str
    """The answer's text; empty when the run failed or waits for a person."""
    status: SessionStatus
    stop_reason: StopReason | None
    """Why it stopped; None while it waits for a person."""
    action: str
    """What the last plan set out to do; empty when nothing was planned."""
    reasoning: str
    """What the last plan said beside its calls."""
    results: dict[str, Any]
    """Call id → the result's whole content, `{"error": …}` for a call that failed."""
    iterations: int
    """Waves run."""
    usage: Usage
    pending: list[dict[str, Any]]
    """What was left undone: calls planned that have no result yet, or that a stop kept from being begun."""
    interrupts: list[Interrupt]
    """What the run asks a person; answer it with `Session.resume`."""
    structured_response: Any = None
    """The answer as plain JSON, where the agent has a `response_format`."""
    cost: float | None = None
    """What its model calls cost, in the price table's currency; None without prices."""
    error: str = ""
    """One sentence for a person; empty unless something failed for good."""


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the answer's text."""

    text: str
    type: Literal["token"] = "token"


@dataclass(frozen=True, slots=True)
class PlanText:
    """What a plan said beside its calls. In `direct` mode it has been streamed as tokens before."""

    text: str
    type: Literal["plan_text"] = "plan_text"


@dataclass(frozen=True, slots=True)
class CallState:
    """A call was planned, or has its result."""

    id: str
    name: str
    status: Literal["started", "success", "error", "unknown", "skipped"]
    type: Literal["call"] = "call"


@dataclass(frozen=True, slots=True)
class Progress:
    """One step forward."""

    step: int
    action: Literal["tool_call", "delegate"]
    target: str
    type: Literal["progress"] = "progress"


@dataclass(frozen=True, slots=True)
class DelegateProgress:
    """What a delegate says of its work while it is at it."""

    id: str
    """The delegation's call id."""
    target: str
    """The delegate."""
    text: str
    type: Literal["delegation_progress"] = "delegation_progress"


@dataclass(frozen=True, slots=True)
class EventAdded:
    """An event joined the history."""

    event: Event
    type: Literal["event"] = "event"


@dataclass(frozen=True, slots=True)
class Done:
    """The run is over; the last part of every stream."""

    result: RunResult
    type: Literal["done"] = "done"


Part: TypeAlias = Token | PlanText | CallState | Progress | DelegateProgress | EventAdded | Done


def run_result(state: StateSnapshot) -> RunResult:
    """Read a session's state as the result of its newest input."""
    values = state.values
    events = since_last_input(values.get("events", []))
    plan = next((entry for entry in reversed(events) if entry["type"] == "plan"), {})
    answer = next((entry["content"] for entry in reversed(events) if entry["type"] == "agent_response"), "")
    error = next((entry["message"] for entry in reversed(events) if entry["type"] == "error"), "")
    answered = [entry for entry in events if entry["type"] in ("tool_result", "delegation_response")]
    results = {
        entry["id"]: entry["content"] if entry["status"] == "success" else {"error": entry["content"]}
        for entry in answered
    }
    undone = _left_undone(events) if values.get("stop_reason") not in (None, "completed") else set()
    # Before the first plan is stored the channel holds an empty mapping.
    used = values.get("usage") or NO_USAGE
    planned = [call for entry in events if entry["type"] == "plan" for call in entry["calls"]]
    return RunResult(
        answer=text_of(answer),
        status=SessionStatus(values.get("status", SessionStatus.CREATED)),
        stop_reason=values.get("stop_reason"),
        action=plan.get("action", ""),
        reasoning=plan.get("reasoning", ""),
        results=results,
        iterations=values.get("loop", NOT_BEGUN)["waves"],
        usage=without_cost(used),
        cost=used.get("cost"),
        pending=[call for call in planned if call["id"] not in results or call["id"] in undone],
        interrupts=list(state.interrupts),
        structured_response=values.get("structured_response"),
        error=error,
    )


def _left_undone(events: Sequence[StoredEvent]) -> set[str]:
    """Ids of the newest wave's calls that were not begun."""
    found: set[str] = set()
    for entry in reversed(events):
        if entry["type"] == "plan":
            break
        if entry.get("status") == "skipped":
            found.add(entry["id"])
    return found


def without_cost(used: Usage) -> Usage:
    """Tokens and model calls alone."""
    return {
        "input_tokens": used["input_tokens"],
        "output_tokens": used["output_tokens"],
        "total_tokens": used["total_tokens"],
        "model_calls": used["model_calls"],
    }


def since_last_input(events: Sequence[StoredEvent]) -> list[StoredEvent]:
    """The events of the newest input, its user message first."""
    start = len(events)
    for start in range(len(events) - 1, -1, -1):
        if events[start]["type"] == "user_message":
            break
    return list(events[start:])
