"""What a run came to, and the parts of its stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from langgraph.types import Interrupt, StateSnapshot

from graph_agent._internal.text import text_of
from graph_agent.events.calls import call_name
from graph_agent.events.types import Event, StoredEvent
from graph_agent.events.values import value_of
from graph_agent.types import NO_USAGE, SessionStatus, StopReason, Usage

if TYPE_CHECKING:
    from graph_agent.models.finish_reasons import CutOff


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one input came to."""

    answer: str
    """The answer's text; of a failed run, what failed and what was done. Empty only while it waits for a person."""
    status: SessionStatus
    stop_reason: StopReason | None
    """Why it stopped; None while it waits for a person."""
    action: str
    """What the last plan set out to do; empty when nothing was planned."""
    reasoning: str
    """What the last plan said beside its calls."""
    results: dict[str, Any]
    """Call id → the result's value as plain JSON, `{"error": …}` with its text for a call that failed.

    The value is what the tool returned: a Python list, dict, number, None, pydantic model or dataclass, the structured
    content of an MCP tool, or text, also where the text looks like JSON. A reference `${id.path}` finds the same value.
    Content blocks that are not all text are the list of blocks.

    Where a model gives an id to several calls, each further one is told as `<id>#2`, `<id>#3`, in the order planned.
    """
    iterations: int
    """Waves run."""
    usage: Usage
    pending: list[dict[str, Any]]
    """What was left undone: calls planned that have no result yet, or that a stop kept from being begun."""
    interrupts: list[Interrupt]
    """What the run asks a person; answer it with `Session.resume`."""
    structured_response: Any = None
    """The answer as an instance of the class that is the agent's `response_format`; plain JSON for a JSON schema."""
    cost: float | None = None
    """What its model calls cost, in the price table's currency; None without prices."""
    error: str = ""
    """One sentence for a person; empty unless something failed for good."""
    truncated: CutOff | None = None
    """What cut the answer off: `length`, `content_filter`, or `interrupted` by the provider; None for a whole one."""
    follow_ups: tuple[RunResult, ...] = ()
    """What the follow-ups came to that were run after this input by the same call, in order."""


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the answer's text."""

    text: str
    type: Literal["token"] = "token"
    reports_failure: bool = False
    """Whether it says, in place of the answer or of its rest, what failed and what was done."""


@dataclass(frozen=True, slots=True)
class PlanText:
    """What a plan said beside its calls.

    Where planning may answer (`finalize` is `auto` or `direct`), it may have been streamed as tokens before.
    """

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
class Custom:
    """What code of the run, such as a tool, wrote to the custom stream (`get_stream_writer`)."""

    data: Any
    """The object as it was written."""
    type: Literal["custom"] = "custom"


@dataclass(frozen=True, slots=True)
class EventAdded:
    """An event joined the history."""

    event: Event
    type: Literal["event"] = "event"


@dataclass(frozen=True, slots=True)
class DelegatePart:
    """A part of the run of a delegate in this process; its tokens are no part of the agent's own answer."""

    id: str
    """The delegation's call id."""
    target: str
    """The delegate."""
    part: RunPart
    """The part; one of a delegate's own delegate is a `DelegatePart` again. The `seq` of its events counts from 0."""
    type: Literal["delegate"] = "delegate"


@dataclass(frozen=True, slots=True)
class Done:
    """An input was taken to its end; the last part of every stream, and of each follow-up in it."""

    result: RunResult
    type: Literal["done"] = "done"


RunPart: TypeAlias = Token | PlanText | CallState | Progress | DelegateProgress | DelegatePart | Custom | EventAdded
"""What a run under way makes."""
Part: TypeAlias = RunPart | Done
"""What `Session.stream` gives, told apart by `type`."""


def run_result(state: StateSnapshot) -> RunResult:
    """Read a session's state as the result of its newest input."""
    values = state.values
    events = since_last_input(values.get("events", []))
    plan = next((entry for entry in reversed(events) if entry["type"] == "plan"), {})
    answer = next((entry for entry in reversed(events) if entry["type"] == "agent_response"), {})
    error = next((entry["message"] for entry in reversed(events) if entry["type"] == "error"), "")
    calls = planned_calls(events)
    stopped = values.get("stop_reason") not in (None, "completed")
    # Before the first plan is stored the channel holds an empty mapping.
    used = values.get("usage") or NO_USAGE
    return RunResult(
        answer=text_of(answer.get("content", "")),
        status=SessionStatus(values.get("status", SessionStatus.CREATED)),
        stop_reason=values.get("stop_reason"),
        action=plan.get("action", ""),
        reasoning=plan.get("reasoning", ""),
        results=_results(calls),
        iterations=values.get("loop", {}).get("waves", 0),
        usage=without_cost(used),
        cost=used.get("cost"),
        pending=[call.planned for call in calls if call.result is None or (stopped and call.left_alone)],
        interrupts=open_interrupts(state),
        structured_response=values.get("structured_response"),
        error=error,
        truncated=answer.get("truncated"),
    )


@dataclass(slots=True)
class PlannedCall:
    """A call of a plan, and what has become of it so far."""

    planned: dict[str, Any]
    """What the plan says of it: its `id` and `name`."""
    ready: bool = False
    """Whether it was made ready to run."""
    result: StoredEvent | None = None
    """The event of its result; None for none yet."""
    newest: bool = True
    """Whether no plan came after it."""

    @property
    def left_alone(self) -> bool:
        """Whether it is of the newest plan, and was not run."""
        return self.newest and self.result is not None and self.result["status"] == "skipped"


def planned_calls(events: Sequence[StoredEvent]) -> list[PlannedCall]:
    """The calls of one input's plans, in order.

    An id may come again in a later plan; what is told of it from then on is of the later call.

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
        elif (name := call_name(entry)) is not None:
            # A person may have added the call to the plan, or put another tool in its place.
            named = {"id": entry["id"], "name": name}
            if (told := by_id.get(entry["id"])) is None:
                told = by_id[entry["id"]] = PlannedCall(named)
                calls.append(told)
            told.planned = {**told.planned, **named}
            if entry["type"] in ("tool_call", "delegation_request"):
                told.ready = True
            else:
                told.result = entry
    return calls


def _results(calls: Sequence[PlannedCall]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    times: Counter[str] = Counter()
    for call in calls:
        id_ = call.planned["id"]
        times[id_] += 1
        if (result := call.result) is not None:
            key = id_ if times[id_] == 1 else f"{id_}#{times[id_]}"
            found[key] = value_of(result) if result["status"] == "success" else {"error": text_of(result["content"])}
    return found


def open_interrupts(state: StateSnapshot) -> list[Interrupt]:
    """What a session asks a person now: without the questions of calls that have gone on to their end since."""
    return [interrupt for task in state.tasks if task.result is None for interrupt in task.interrupts]


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
    return list(events[input_at(events) :])


def input_at(events: Sequence[StoredEvent]) -> int:
    """Index of the newest input's user message; 0 where there is none."""
    for index in range(len(events) - 1, -1, -1):
        if events[index]["type"] == "user_message":
            return index
    return 0
