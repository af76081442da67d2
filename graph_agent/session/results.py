"""Defines the result of a run, read from the state of its session, and the parts of its stream.

An input is one message of a user with everything up to its answer; a wave is the calls of one plan.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Interrupt, StateSnapshot

from graph_agent.base._internal.text import html_table, text_of
from graph_agent.base.approvals.requests import request_of
from graph_agent.base.finish import REFUSAL_WARNING
from graph_agent.base.history.call_events import call_name, value_of
from graph_agent.base.history.events import NOT_RUN, SUCCESSES, Event, PlannedCall, ResultStatus, StoredEvent, is_own
from graph_agent.base.input_messages import since_input
from graph_agent.base.settings.config import AgentContext
from graph_agent.base.types import (
    CLIENT_CALL,
    NO_USAGE,
    CutOff,
    ResponseT,
    SessionStatus,
    StopReason,
    Usage,
    plan_id_of,
)
from graph_agent.core.state.messages import failure_error
from graph_agent.session.built_agent import builder_of
from graph_agent.session.open_input import events_of
from graph_agent.session.open_input import input_at as input_at  # with the result, for those who read it
from graph_agent.session.open_input import open_interrupts as open_interrupts
from graph_agent.session.open_input import since_last_input as since_last_input
from graph_agent.session.open_input import stored_input as stored_input

__all__ = [
    "CallState",
    "Custom",
    "DelegatePart",
    "DelegateProgress",
    "Done",
    "EventAdded",
    "Part",
    "PlanText",
    "Progress",
    "Reasoning",
    "RunCall",
    "RunPart",
    "RunResult",
    "Token",
    "Usage",
    "Waiting",
]


Waiting = Literal["approval", "client_tool", "answer"]
"""What a session waits for: decisions on calls, results of the caller's own tools, or the answer to another
question.
"""


class Cause:
    """The exception behind a failure, so that a result can be copied and pickled.

    Copies share the exception; a pickled result has none.

    Args:
        error: The exception; None if there is none.
    """

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    @property
    def provider_words(self) -> str:
        """Status and message of the provider for an exception of a chat model; empty for any other exception."""
        # Imported here: results of inputs that did not fail need no classes of errors.
        from graph_agent.models.errors import brief_model_error, is_raised_by_model

        return brief_model_error(self.error) if self.error is not None and is_raised_by_model(self.error) else ""

    def __deepcopy__(self, memo: dict[int, Any]) -> Cause:
        # Providers' exceptions can seldom be copied or pickled.
        return self

    def __reduce__(self) -> tuple[type[Cause], tuple[()]]:
        return Cause, ()


@dataclass(frozen=True, slots=True)
class RunCall:
    """One call of an input, with its outcome."""

    id: str
    """Id of the call, unique in the session."""
    name: str
    """The tool's name, or `delegate_to_<name>`."""
    arguments: dict[str, Any]
    """The arguments with which it ran, in which references are replaced; for a call that never started, those of the
    model.
    """
    result: Any
    """The value of the result, as in `RunResult.results`; None if there is no result."""
    status: ResultStatus | None
    """How the call ended; None while it is unfinished."""
    duration_s: float | None
    """Seconds that it ran, retries included and waits for a slot or a person excluded, on the monotonic clock; None for
    a call that did not run, is unfinished, or was cut off by a crash. In sessions of older versions, seconds from its
    start to its result."""
    plan_id: str = ""
    """Id of the call in a structured plan, by which references, `needs` and `RunResult.results` refer to it; its `id`
    in other modes.
    """


@dataclass(frozen=True, slots=True, repr=False)
class RunResult(Generic[ResponseT]):
    """The result of one input."""

    answer: str
    """The answer's text; for a failed run, the failure and the work done. Empty only while it waits for a person."""
    status: SessionStatus
    """The session's status after the run."""
    stop_reason: StopReason | None
    """Why the input stopped; None while it waits for a person."""
    action: str
    """The `action` of the last plan; empty without a plan."""
    reasoning: str
    """The text of the last plan, apart from its calls."""
    results: dict[str, Any]
    """The model's id of a call → the result's value as plain JSON, `{"error": …}` with its text for a failed call.

    The value is the tool's return value: a Python list, dict, number, None, pydantic model or dataclass, the structured
    content of an MCP tool, or text, even if the text looks like JSON. A reference `${id.path}` yields the same value.
    Content blocks that are not all text are a list of blocks.

    In structured plans, an id that is used again is that of its newest call; `calls` has all of them. Other calls that
    reuse an id have the keys `<id>#2`, `<id>#3`, in the order planned.
    """
    calls: list[RunCall]
    """All calls, in the order planned."""
    iterations: int
    """Number of waves that were run."""
    usage: Usage
    """Tokens and model calls of the input, those of hooks and delegates included."""
    pending: list[PlannedCall]
    """Unfinished calls: planned calls without a result, and calls that a stop prevented from starting."""
    interrupts: list[Interrupt]
    """Open interrupts; answer them with `Session.resume`."""
    structured_response: ResponseT | None = None
    """The answer as an instance of the class that is the agent's `response_format`; plain JSON for a JSON schema.

    None without a response format, and for an input without an answer: one that waits for a person, failed or was
    stopped.
    """
    cost: float | None = None
    """Cost of the input's model calls, in the price table's currency; None without prices."""
    error: str = ""
    """What failed, with the provider's HTTP status, and the fix; empty unless something failed for good."""
    error_kind: str = ""
    """The `kind` of the `error` event; empty without an error."""
    hint: str = ""
    """Advice for the developer on the failure, the limit or the cut-off; may be empty. No answer contains it."""
    truncated: CutOff | None = None
    """Why the answer was cut off: `length`, `content_filter`, or `interrupted` by the provider; None if complete."""
    state: dict[str, Any] = field(default_factory=dict)
    """The agent's own state fields after the run (see `state_schema`), those that have a value."""
    follow_ups: tuple[RunResult[ResponseT], ...] = ()
    """Results of the follow-ups that the same call ran after this input, in order."""
    cause: Any = field(default=None, repr=False, compare=False)
    """A `Cause` with the exception behind a failure; None without one, and for a result read from storage."""
    events: Sequence[StoredEvent] = field(default=(), repr=False, compare=False)
    """The session's history after the run, as stored."""

    def raise_for_status(self) -> RunResult[ResponseT]:
        """Raise the failure of the input as an exception; return the result itself if it did not fail.

        Raises:
            RunFailedError: When the status is `FAILED`. Its cause is the provider's or the hook's exception, if the
                input failed in this run.
        """
        if self.status != SessionStatus.FAILED:
            return self
        cause = None if self.cause is None else self.cause.error
        raise failure_error(self.error, kind=self.error_kind, answer=self.answer) from cause

    def __repr__(self) -> str:
        return f"RunResult({', '.join(f'{name}={reprlib.repr(value)}' for name, value in self._shown())})"

    def _repr_html_(self) -> str:
        """Return the tables of the result and of its calls, if any, for a notebook, as HTML."""
        calls = [
            (call.name, reprlib.repr(call.arguments), call.status or "unfinished", reprlib.repr(call.result))
            for call in self.calls
        ]
        return html_table("RunResult", self._shown()) + (html_table("Calls", calls) if calls else "")

    def _shown(self) -> list[tuple[str, Any]]:
        """Return what a notebook displays about the result, as names and values."""
        shown: list[tuple[str, Any]] = [("status", self.status.value), ("stop_reason", self.stop_reason)]
        shown += [("answer", self.answer), ("calls", [call.name for call in self.calls])]
        shown += [(name, value) for name in ("error", "hint", "waiting") if (value := getattr(self, name))]
        return shown

    @property
    def requests(self) -> list[ModelRequest]:
        """The requests that models received for this input, oldest first.

        Without `record_requests` they are reconstructed from the history, and marked so.
        """
        from graph_agent.core.state.model_requests import requests_of

        first = input_at(self.events)
        return [each for each in requests_of(self.events) if each.seq >= first]

    @property
    def citations(self) -> list[Citation]:
        """The sources of the answer that tools of the provider found, in the order of the text; empty without any."""
        newest = next((each for each in reversed(self.events) if each["type"] == "agent_response"), None)
        cited: list[Citation] = newest.get("citations", []) if newest is not None else []
        return cited

    @property
    def waiting(self) -> Waiting | None:
        """What the session waits for; None if it does not wait."""
        return waiting_for(self.interrupts)


def is_refusal(events: Sequence[StoredEvent]) -> bool:
    """Return whether one of the events is a warning that the model or its provider refused to answer."""
    return any(event["type"] == "warning" and str(event.get("message")).endswith(REFUSAL_WARNING) for event in events)


def run_result(state: StateSnapshot, fields: Sequence[str] = ()) -> RunResult:
    """Return the result of a session's newest input, read from the session's state as `stored_input` does.

    Args:
        state: The state of the session.
        fields: Names of the agent's own state fields, whose values become `RunResult.state`.
    """
    found = stored_input(state, fields)
    values, events = found.values, found.events
    # Before the first plan is stored the channel holds an empty mapping.
    usage: Usage = values.get("usage") or NO_USAGE
    plan, answer, error = found.newest("plan"), found.newest("agent_response"), found.newest("error")
    calls, stopped = planned_calls(events), values.get("stop_reason") not in (None, "completed")
    return RunResult(
        answer=text_of(answer.get("content", "")),
        status=found.status,
        stop_reason=values.get("stop_reason"),
        action=plan.get("action", ""),
        reasoning=plan.get("reasoning", ""),
        results=_results(calls),
        calls=_run_calls(calls, values.get("messages", [])),
        iterations=values.get("loop", {}).get("waves", 0),
        usage={
            "input_tokens": usage["input_tokens"],
            "output_tokens": usage["output_tokens"],
            "total_tokens": usage["total_tokens"],
            "model_calls": usage["model_calls"],
        },
        cost=usage.get("cost"),
        pending=[call.planned for call in calls if call.result is None or (stopped and call.was_skipped)],
        interrupts=open_interrupts(state),
        structured_response=values.get("structured_response"),
        error=error.get("message", ""),
        error_kind=error.get("kind", ""),
        hint=next((entry["hint"] for entry in reversed(events) if entry.get("hint")), ""),
        truncated=answer.get("truncated"),
        state={name: values[name] for name in fields if name in values},
        events=events_of(state),
    )


@dataclass(slots=True)
class TrackedCall:
    """A call of a plan, with its state as the events show it."""

    planned: PlannedCall
    """The call in the plan event."""
    ready: bool = False
    """Whether the call has begun, so that it was ready to run."""
    started: StoredEvent | None = None
    """The event that precedes the call's run; None before."""
    result: StoredEvent | None = None
    """The event of the call's result; None before."""
    newest: bool = True
    """Whether the call belongs to the newest plan."""
    rejected: bool = False
    """Whether a reviewer rejected the call."""
    structured: bool = False
    """Whether the call's plan is a structured one."""

    @property
    def was_skipped(self) -> bool:
        """Whether the call belongs to the newest plan and was skipped for another reason than a rejection."""
        return self.newest and not self.rejected and self.result is not None and self.result["status"] == "skipped"


def planned_calls(events: Sequence[StoredEvent]) -> list[TrackedCall]:
    """Return the calls of one input's plans with their state, in the order planned, with those that a reviewer added.

    `events` are those of the input, oldest first. A later plan may reuse an id; later events with it belong to the
    later call, and `newest` of the earlier one is False. An edited call has the tool of its newest event.
    """
    calls: list[TrackedCall] = []
    by_id: dict[str, TrackedCall] = {}
    for entry in events:
        if entry["type"] == "plan":
            for call in calls:
                call.newest = False
            planned = [TrackedCall(call, structured="planner" in entry) for call in entry["calls"]]
            calls += planned
            by_id |= {call.planned["id"]: call for call in planned}
        elif is_own(entry, "approval_decision") and (decided := by_id.get(entry["id"])) is not None:
            decided.rejected = entry["decision"] == "reject"
        elif (name := call_name(entry)) is not None:
            # A person may have added the call to the plan, or replaced its tool.
            named: PlannedCall = {"id": entry["id"], "name": name}
            if (known := by_id.get(entry["id"])) is None:
                known = by_id[entry["id"]] = TrackedCall(named)
                calls.append(known)
            known.planned = {**known.planned, **named}
            if entry["type"] in ("tool_call", "delegation_request"):
                known.ready, known.started = True, entry
            else:
                known.result = entry
    return calls


def _results(calls: Sequence[TrackedCall]) -> dict[str, Any]:
    """Return the model's id of a call → value of its result. Calls without a result are left out.

    If an id is used again, structured plans keep only the newest call; otherwise later calls get the keys `<id>#2`,
    `<id>#3`.
    """
    results: dict[str, Any] = {}
    times: Counter[str] = Counter()
    for call in calls:
        key = plan_id_of(call.planned)
        times[key] += 1
        if call.structured:
            # Removed first, so that the newest call of an id has the last place, too.
            results.pop(key, None)
        elif times[key] > 1:
            key = f"{key}#{times[key]}"
        if call.result is not None:
            results[key] = _value(call.result)
    return results


def _value(result: StoredEvent) -> Any:
    """Return the value in the event of a result; `{"error": TEXT}` for a failure."""
    return value_of(result) if result["status"] in SUCCESSES else {"error": text_of(result["content"])}


def planned_arguments(messages: Iterable[AnyMessage]) -> dict[str, dict[str, Any]]:
    """Return call id → arguments as the model sent them. Events lack them for a call that never started."""
    return {
        call["id"] or "": call["args"]
        for message in messages
        if isinstance(message, AIMessage)
        for call in message.tool_calls
    }


def _run_calls(calls: Sequence[TrackedCall], messages: Sequence[AnyMessage]) -> list[RunCall]:
    """Return the calls of an input with arguments, outcome and duration, in the order planned.

    The arguments are those of the event with which a call began (for a delegation, `{"task": …}`), else those in
    `messages`, the session's messages. The duration is None for a call that did not run, or whose end is unknown.
    """
    planned = planned_arguments(since_input(messages))
    found: list[RunCall] = []
    for call in calls:
        started, result, id_ = call.started, call.result, call.planned["id"]
        arguments = planned.get(id_, {})
        if started is not None:
            arguments = started["arguments"] if started["type"] == "tool_call" else {"task": started["task"]}
        duration_s = result.get("duration_s") if result is not None else None
        # Events of older versions have no duration, nor has a call that was settled after a crash.
        timeless = {*NOT_RUN, "unknown"}
        if duration_s is None and started is not None and result is not None and result["status"] not in timeless:
            times = [datetime.fromisoformat(entry["ts"]) for entry in (started, result)]
            duration_s = (times[1] - times[0]).total_seconds()
        value = None if result is None else _value(result)
        status = None if result is None else result["status"]
        found.append(
            RunCall(id_, call.planned["name"], dict(arguments), value, status, duration_s, plan_id_of(call.planned))
        )
    return found


def waiting_for(interrupts: Sequence[Interrupt]) -> Waiting | None:
    """Return what a session with these open interrupts waits for, the first value of `Waiting` that applies; None
    without interrupts.
    """
    if not interrupts:
        return None
    if any(request_of(each) is not None for each in interrupts):
        return "approval"
    is_client_call = [isinstance(each.value, dict) and each.value.get("type") == CLIENT_CALL for each in interrupts]
    return "client_tool" if any(is_client_call) else "answer"


def typed_result(
    result: RunResult, graph: CompiledStateGraph[Any, Any, Any, Any], context: AgentContext | Mapping[str, Any] | None
) -> RunResult:
    """Return a result with the structured response as an instance of the agent's response format.

    It stays plain JSON if the context has a `response_schema`, or the agent has no response format.
    """
    values: Any = dict(context) if isinstance(context, Mapping | AgentContext) else {}
    builder = builder_of(graph)
    schema = builder.response if builder is not None else None
    if schema is None or values.get("response_schema") is not None:
        return result
    return replace(result, structured_response=schema.instance(result.structured_response))


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text of a message, which is the answer unless a `PlanText` with its `message_id` follows.

    The texts of the other tokens, joined, are `RunResult.answer`, or the beginning of one that an abort or the deadline
    has cut off.
    """

    text: str
    type: Literal["token"] = "token"
    reports_failure: bool = False
    """Whether the text reports a failure, in place of the answer or its rest."""
    message_id: str = field(default="", compare=False)
    """Id of the message; pieces of one message have the same id."""
    is_from_model: bool = field(default=True, repr=False, compare=False)
    """Whether the model wrote the text; False for text that the run appends to a reply, such as why it was stopped."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the reasoning of the agent's model, in a stream with `reasoning=True`; never a part of the answer."""

    text: str
    message_id: str = field(default="", compare=False)
    """Id of the model's message, as in the `Token`s of the message; empty if unknown."""
    type: Literal["reasoning"] = "reasoning"


@dataclass(frozen=True, slots=True)
class PlanText:
    """Text that is not the answer: that of a plan with calls, or an answer that the run has replaced."""

    text: str
    """The text."""
    type: Literal["plan_text"] = "plan_text"
    message_id: str = field(default="", compare=False)
    """Id of the message whose streamed tokens turned out to be commentary; empty if no token was streamed."""


@dataclass(frozen=True, slots=True)
class CallState:
    """A call is about to run, or has its result. A call that is known not to run has only the latter."""

    id: str
    """Id of the call."""
    name: str
    status: ResultStatus | Literal["started"]
    """`started`, or how the call ended."""
    type: Literal["call"] = "call"


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of the run, as on the custom stream."""

    step: int
    action: Literal["tool_call", "delegate", "approval"]
    target: str
    """Name of the tool or delegate."""
    type: Literal["progress"] = "progress"


@dataclass(frozen=True, slots=True)
class DelegateProgress:
    """A delegate's message on the progress of its work."""

    id: str
    """Id of the delegation's call."""
    target: str
    """Name of the delegate."""
    text: str
    type: Literal["delegation_progress"] = "delegation_progress"


@dataclass(frozen=True, slots=True)
class Custom:
    """An object that code of the run, such as a tool, has written to the custom stream (`get_stream_writer`)."""

    data: Any
    """The object."""
    type: Literal["custom"] = "custom"


@dataclass(frozen=True, slots=True)
class EventAdded:
    """An event was added to the history."""

    event: Event
    """The event, with its index in the history (`seq`)."""
    type: Literal["event"] = "event"
    message_id: str = field(default="", repr=False, compare=False)
    """Id of the model's message with the calls of a plan; empty for other events, and for a plan without calls."""
    is_early: bool = field(default=False, repr=False, compare=False)
    """Whether the event is not stored yet, because its superstep still waits for a model."""


@dataclass(frozen=True, slots=True)
class DelegatePart:
    """A part of the run of a delegate in this process. Its tokens do not belong to the agent's own answer."""

    id: str
    """Id of the delegation's call."""
    target: str
    """Name of the delegate."""
    part: RunPart
    """The part; again a `DelegatePart` for a delegate of the delegate. The `seq` of its events counts from 0."""
    type: Literal["delegate"] = "delegate"


@dataclass(frozen=True, slots=True)
class StateValues:
    """The values of the agent's output channels after a superstep, in a run whose `RunOutput` includes them."""

    values: Mapping[str, Any]
    type: Literal["state"] = "state"


@dataclass(frozen=True, slots=True)
class Done(Generic[ResponseT]):
    """The end of an input. It is the last part of a stream, and of each follow-up in it."""

    result: RunResult[ResponseT]
    type: Literal["done"] = "done"


RunPart: TypeAlias = (
    Token | Reasoning | PlanText | CallState | Progress | DelegateProgress | DelegatePart | Custom | EventAdded
)
"""A part of a run in progress."""
ServedPart: TypeAlias = RunPart | StateValues
"""A part of `RunDriver.input_parts`."""
if TYPE_CHECKING:
    from graph_agent.base.types import Citation
    from graph_agent.core.state.model_requests import ModelRequest

    Part: TypeAlias = RunPart | Done[ResponseT]
    """A part of `Session.stream`; a union tagged by `type`."""
else:
    # Without the argument, programs can pass the union to `isinstance`.
    Part = RunPart | Done
    """A part of `Session.stream`; a union tagged by `type`."""
