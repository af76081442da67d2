"""Defines the session's history: one append-only list of small dictionaries.

A stored event has ``type``, ``ts`` (ISO 8601, UTC) and ``step``. ``seq`` (its index) and ``session_id`` follow from its
position and are added on reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NotRequired, TypeAlias, cast

from typing_extensions import TypedDict

from graph_agent.base._internal import telemetry
from graph_agent.base.approvals.requests import DecisionType, HeldCall
from graph_agent.base.history.plan_parts import (
    LeftOutCall,
    ModelCallRecord,
    PlanCandidate,
    PlanJudgement,
    Purpose,
    SpeculationCounts,
    SpeculationSource,
    VersionsOfPlan,
)
from graph_agent.base.history.plan_parts import PlannedCall as PlannedCall  # its public module takes it from here
from graph_agent.base.types import Citation, TracedCall, Usage

ResultStatus = Literal["success", "error", "unknown", "invalid", "skipped", "denied", "answered"]
"""How a call ended: `error` if it ran and failed, `unknown` if it may have run and its effect is not known. Four never
ran: `invalid`, with an unknown name or arguments that do not fit; `skipped`, because of a limit, an abort, a crash or a
failed call that it needs; `denied` by a person or middleware; `answered`, with a result supplied in place of the
tool's."""
NOT_RUN: frozenset[ResultStatus] = frozenset({"invalid", "skipped", "denied", "answered"})
"""The statuses of calls that never ran."""
SUCCESSES = frozenset({"success", "answered"})
"""The statuses of a result that other calls can use."""

StoredEvent: TypeAlias = dict[str, Any]
"""One event as stored in the state: `type`, `ts`, `step` and the fields of its type."""

Rating = Literal["up", "down"]
"""A person's thumb on an answer."""


class _Event(TypedDict):
    seq: int
    """Index in the session's history, from 0."""
    ts: str
    """When it happened: ISO 8601, UTC, microseconds."""
    session_id: str
    """The session that the event belongs to."""
    step: int
    """Number of the plan that it belongs to, from 1; 0 before the first plan of an input."""
    model_calls: NotRequired[list[ModelCallRecord]]
    """The model calls that led to this event, oldest first: all since the last event that has any. In a `plan`, an
    `agent_response`, or the event that ends an input without either; absent if there were none."""
    resumed_at: NotRequired[str]
    """When the run that recorded the event resumed the input, in the format of `ts`; in results of calls and in events
    that may have `model_calls`. Absent unless the input was interrupted, as by a crash, and resumed without an
    answer."""
    early: NotRequired[dict[SpeculationSource, SpeculationCounts]]
    """What began before a plan asked for it, and what became of it: all since the last event that has any, which are
    the events that have `model_calls`. Absent if there was none."""


class _TimedCall(TypedDict):
    queued_s: NotRequired[float]
    """Seconds that the call waited for a free slot and the effect ledger (the table of calls that may write), on the
    monotonic clock, from the start of its task; absent if it did not run in this run of the graph."""
    duration_s: NotRequired[float]
    """Seconds that the call ran, retries included, on the monotonic clock, up to just before `ts`; else absent."""
    early_s: NotRequired[float]
    """Seconds that the call had run before its own start, because it began before its plan was whole; else absent."""
    lead_s: NotRequired[float]
    """Seconds from its early begin to its own start: more than `early_s` if it had ended before; else absent."""
    waited_s: NotRequired[float]
    """Wall-clock seconds from the call's last event before it ran, which is its start or its question to a person, to
    that run, if a person has answered in between. Absent if the call asked no person."""


class UserMessageEvent(_Event):
    """The user sent a message."""

    type: Literal["user_message"]
    content: str | list[Any]
    """Text, or content blocks if it has more than text."""
    queued_s: NotRequired[float]
    """Seconds from the request for the run to its begin, on the monotonic clock, the wait for the session's lock
    included. For a follow-up, wall-clock seconds since it was sent. Absent in sessions of older versions."""


class PlanEvent(_Event):
    """The model planned a step."""

    type: Literal["plan"]
    status: Literal["continue", "done"]
    """`continue` if the model plans again after these calls, `done` if not."""
    action: str
    """The intended action, in the model's words."""
    reasoning: str
    """The text of the reply that has the calls."""
    calls: list[PlannedCall]
    """The calls of the plan, in the model's order; empty if there are none."""
    slots: NotRequired[Any]
    """Parameters that the model read from the user's message; only with structured planning."""
    reruns: NotRequired[int]
    """Number of model reruns by hooks for this plan; absent if there were none."""
    planner: NotRequired[Literal["wave", "dag"]]
    """`wave`: one parallel batch a plan; `dag`: calls may wait for others. Only with structured planning."""
    cached: NotRequired[Literal[True]]
    """The plan comes from the cache; absent if the model made it."""
    candidates: NotRequired[list[PlanCandidate]]
    """The requests of which this plan was chosen; absent for one request."""
    judge: NotRequired[PlanJudgement]
    """The request to a model that chose the plan; absent if none was asked."""
    versions: NotRequired[VersionsOfPlan]
    """The prompts and tools that the model planned with; in the first plan of an input, and when they have changed."""


class _Start(TracedCall, _Event):
    id: str
    """Id of the call, unique in the session."""
    plan_id: NotRequired[str]
    """The model's own id of the call, as in the `plan` event."""
    refused: NotRequired[Literal["invalid", "skipped", "denied"]]
    """Status of the result that the call gets instead of running; absent for a call that is about to run."""


class ToolCallEvent(_Start):
    """A tool call is about to run, unless middleware refuses or answers it; the status of its result shows which."""

    type: Literal["tool_call"]
    name: str
    """Name of the tool."""
    arguments: dict[str, Any]
    """The arguments, with references replaced by their values."""


class _Outcome(_Event):
    id: str
    """Id of the call, as in its `tool_call` or `delegation_request`."""
    status: ResultStatus
    """How the call ended."""
    content: str | list[Any]
    """The whole output, even if the model sees only a part; of a call that did not run, the reason."""
    encoding: NotRequired[Literal["json"]]
    """Present if `content` is the JSON text of the result's value; absent if the content is the value itself."""
    value: NotRequired[Any]
    """The result's value, if `content` does not determine it; see `value_of` of `graph_agent.state.events`."""


class ToolResultEvent(_TimedCall, _Outcome):
    """A tool call has a result."""

    type: Literal["tool_result"]
    name: str
    """Name of the tool."""
    decided_by: NotRequired[str]
    """The person, the middleware or `loop_detection` that denied or answered the call; absent for other statuses."""
    truncated: bool
    """Whether the model sees only a part of the content."""


class DelegationRequestEvent(_Start):
    """A task is about to be sent to a delegate; it has the fields of a `tool_call`."""

    type: Literal["delegation_request"]
    target: str
    """Name of the delegate."""
    task: str
    """The task, in the model's words."""


class _DelegateAnswer(_Outcome):
    target: str
    """Name of the delegate."""
    usage: NotRequired[Usage]
    """Tokens and model calls of the delegate; absent if it reported none."""


class DelegationResponseEvent(_TimedCall, _DelegateAnswer):
    """A delegate answered."""

    type: Literal["delegation_response"]
    decided_by: NotRequired[str]
    """The person or the middleware that denied or answered the delegation; absent for other statuses."""
    untrusted: NotRequired[Literal[True]]
    """The content comes from another process and is untrusted; absent for a delegate of this process."""
    history: NotRequired[list[StoredEvent]]
    """The delegate's own events, if it is a graph of this process; absent if there are none."""
    background: NotRequired[str]
    """Id of the session or remote task that goes on; only if the delegation was started in the background."""


class DelegationProgressEvent(_Event):
    """A delegate reported progress."""

    type: Literal["delegation_progress"]
    id: str
    """Id of the call, as in its `delegation_request`."""
    target: str
    """Name of the delegate."""
    content: str
    """One line of progress."""


class BackgroundResultEvent(_DelegateAnswer):
    """A delegation in the background has ended; its `delegation_response` is from its start."""

    type: Literal["background_result"]


class RecallEvent(_Event):
    """Facts of earlier sessions were added to the requests of this input, or facts were extracted from it; only for an
    agent with a memory."""

    type: Literal["recall"]
    facts: list[str]
    """Ids of the facts in the requests, the best first. The texts stand in the memory alone, so that forgetting removes
    them."""
    kept: NotRequired[list[str]]
    """Ids of the facts that the model extracted from the input after its answer; `facts` is empty then."""


class SteeringEvent(_Event):
    """The user sent a message during a run."""

    type: Literal["steering"]
    content: str | list[Any]
    """Text, or content blocks if it has more than text."""
    queued_s: NotRequired[float]
    """Seconds since it was sent, of the wall clock; absent in sessions of older versions."""


class _Approval(_Event):
    delegate: NotRequired[str]
    """The delegate whose calls wait, as `outer/inner` if it is nested; absent for calls of the agent itself."""
    delegation: NotRequired[str]
    """Id of the delegation's call; absent for calls of the agent itself."""
    middleware: NotRequired[str]
    """Name of the middleware that asked; absent for an approval of the agent itself."""


class ApprovalRequestEvent(_Approval):
    """Calls wait for a person's decisions."""

    type: Literal["approval_request"]
    calls: list[HeldCall]
    """The calls, in the model's order."""


class ApprovalDecisionEvent(_Approval):
    """A person decided on a call."""

    type: Literal["approval_decision"]
    id: str
    """Id of the call, as in its `approval_request`."""
    name: str
    """Name of the requested call."""
    decision: DecisionType
    """The decision."""
    decided_by: str
    """Name of the person, from the program that resumed the session; `user` if it gave none. `always (<name>)` for an
    earlier `approve(always=True)` of that person, `on_approval` for the program's callback."""
    arguments: NotRequired[dict[str, Any]]
    """Arguments of the call that runs in its place; only for `edit`."""
    edited_name: NotRequired[str]
    """Name of the call that runs in its place; absent if it is the requested one."""
    message: NotRequired[str]
    """Reason of a rejection, or the result that a response gives; absent if there is none."""
    always: NotRequired[Literal[True]]
    """The person approved later calls of the same name in the session, too; absent if not."""
    waited_s: NotRequired[float]
    """Seconds since the `approval_request`, of the wall clock, because another process may have asked; absent if a
    remote delegate or middleware asked, and in sessions of older versions."""


class FeedbackEvent(_Event):
    """A person rated an answer, maybe long after it; the model never receives this. The newest one of a person on an
    answer counts."""

    type: Literal["feedback"]
    id: str
    """Id of this feedback, unique in the session."""
    answer: int
    """`seq` of the rated `agent_response`."""
    rating: Rating
    """The thumb."""
    by: str
    """Name of the person; `user` if the program gave none."""
    note: NotRequired[str]
    """What the person wrote; absent if nothing."""
    evaluate: NotRequired[Literal[True]]
    """The person wants the answer as a case of an evaluation; absent if not."""
    input_id: NotRequired[str]
    """The id of the answer's input, if the answer was named by it."""
    message_id: NotRequired[str]
    """The id of the answer's message, or the id with which an API has returned the answer, if it was named by one."""


class RenameEvent(_Event):
    """A person gave the session a title; the model never receives this."""

    type: Literal["rename"]
    id: str
    """Id of this change, unique in the session."""
    title: str
    """The title."""
    by: str
    """Name of the person; `user` if the program gave none."""


class RevocationEvent(_Event):
    """A person took back the approval of all calls of a kind, so that later ones wait; no model receives this."""

    type: Literal["revocation"]
    id: str
    """Id of this change, unique in the session."""
    name: str
    """Name of the calls."""
    delegate: NotRequired[str]
    """The delegate whose calls they are, as in `approval_request`; absent for calls of the agent itself."""
    by: str
    """Name of the person; `user` if the program gave none."""


class ForkEvent(_Event):
    """The session is a copy of another one up to this place; the model never receives this."""

    type: Literal["fork"]
    id: str
    """Id of this change, unique in the session."""
    origin: str
    """Id of the session that was copied."""
    by: str
    """Name of the person; `user` if the program gave none."""
    calls: list[LeftOutCall]
    """The calls of that session after this place that succeeded or may have taken effect, oldest first."""


class SummaryEvent(_Event):
    """The model summarized the older part of the conversation, which requests no longer contain."""

    type: Literal["summary"]
    content: str
    """The summary; it includes the content of the previous one."""
    messages: int
    """Number of messages that it replaces in requests, in addition to those that the previous one replaced."""


class LoopDetectedEvent(_Event):
    """The model repeats the same calls."""

    type: Literal["loop_detected"]
    pattern: list[str]
    """Names of the tools and delegations in one period, oldest first."""
    count: int
    """Number of consecutive repetitions, at the end of the calls, of what `repeated` names."""
    repeated: Literal["calls", "calls and results", "results"]
    """What repeats: equal `calls` (results differ, or the calls are withheld), equal `calls and results`, or equal
    `results` of different arguments."""
    hint: NotRequired[str]
    """Advice for the developer; only if the loop ended planning."""


class LimitEvent(_Event):
    """A limit ended planning."""

    type: Literal["limit"]
    reason: str
    """The stop reason, such as `step_limit`."""
    limit: float
    """The limit's value, in the unit of its setting."""
    hint: NotRequired[str]
    """Advice for the developer; absent if there is none."""


class ModelRequestEvent(_Event):
    """A model received a request; only with `record_requests`, once for all attempts of the same request.

    `graph_agent.core.state.model_requests` reads these events; each is the difference to the one before.
    """

    type: Literal["model_request"]
    purpose: Purpose
    """What the reply is for."""
    model: str
    """Name of the model as the provider reports it; else as configured, or the kind of the model."""
    started: str
    """When the request was sent, as in the record of its model call."""
    kept_first: int
    """Number of leading messages that the request before has at its beginning, too."""
    added: list[str]
    """Hashes of the messages that follow these; `parts` of this or an earlier event has the messages."""
    kept_last: int
    """Number of trailing messages, after the added ones, that the request before has at its end, too."""
    tools: NotRequired[list[str]]
    """Hashes of the offered tools; absent if they are those of the request before."""
    options: NotRequired[dict[str, Any]]
    """Other options of the call; absent if they are those of the request before."""
    learned: NotRequired[dict[str, Any]]
    """Fields of `WireRules` (what the endpoint accepts) that this request taught, because others were refused."""
    reasoning: NotRequired[str]
    """The reasoning of the reply; absent if the provider shows none."""
    parts: dict[str, Any]
    """Hash → message or tool as plain JSON, of those that no earlier event has; secrets are masked as in logs."""


class MiddlewareEvent(_Event):
    """A hook of middleware changed the messages, or jumped."""

    type: Literal["middleware"]
    name: str
    """Name of the middleware."""
    hook: str
    """`before_agent`, `before_model`, `after_model` or `after_agent`."""
    messages: NotRequired[list[dict[str, Any]]]
    """The added and the changed messages, each with its `type` and `content`; absent if there are none."""
    removed: NotRequired[int]
    """Number of messages removed; absent if none was removed. Earlier events keep their content."""
    jump_to: NotRequired[str]
    """Where it jumped: `end`, `model` or `tools`; absent if it did not jump."""


class HookEvent(_Event):
    """A loop hook, or `wrap_model_call` of middleware, replaced a model's reply, ended the loop, or asked again."""

    type: Literal["hook"]
    name: str
    """Name of its class, or of the middleware."""
    action: Literal["replaced", "ended", "rerun"]
    """`replaced`: another reply counts in place of the model's; `ended`: planning ended without the reply's calls;
    `rerun`: the model is asked again."""
    reply: NotRequired[str]
    """The text of the model's own reply; absent if no model was asked."""
    calls: NotRequired[list[dict[str, Any]]]
    """The calls of that reply, which do not run, each with `name` and `arguments`; absent if there are none."""
    messages: NotRequired[list[dict[str, Any]]]
    """The messages that the hook added for a rerun, such as results of calls, each with its `type` and `content`."""


class WarningEvent(_Event):
    """A problem that does not stop the run."""

    type: Literal["warning"]
    message: str
    """What happened, and the fix if there is one."""
    hint: NotRequired[str]
    """Advice for the developer; absent if there is none."""
    commentary: NotRequired[str]
    """Text that readers received of a reply which is no answer; absent if there was none."""


class ErrorEvent(_Event):
    """A permanent failure."""

    type: Literal["error"]
    kind: str
    """Category: `planning`, `hook`, `middleware`, `code`, `response_format`, `response_schema`, `empty_answer`, or that
    of a model error, e.g. `auth`."""
    message: str
    """What failed, and the fix if there is one."""
    hint: NotRequired[str]
    """Advice for the developer; absent if there is none."""


class ProviderCallEvent(_Event):
    """The model's provider ran a tool for a reply, such as a web search."""

    type: Literal["provider_call"]
    id: str
    """The provider's id of the call, or one made of the reply's id."""
    name: str
    """Name of the tool, such as `web_search`; of an MCP server, the name of the server's tool."""
    server: NotRequired[str]
    """Label of the MCP server; absent for other tools."""
    arguments: dict[str, Any]
    """The arguments, as far as the provider reports them."""
    status: Literal["success", "error", "unknown"]
    """`unknown` if the reply broke off before the result, so that the call may have had an effect."""
    content: str
    """The result as text, without encrypted parts; empty if the reply has none."""


class AgentResponseEvent(_Event):
    """The agent answered, or a failed input ended with a report."""

    type: Literal["agent_response"]
    content: str | list[Any]
    """The answer: text, or content blocks if it has more than text."""
    truncated: NotRequired[Literal["length", "content_filter", "interrupted"]]
    """The reason the answer is incomplete; absent for a complete one."""
    error: NotRequired[str]
    """The kind of the error that prevented the answer or the rest of it; absent if there is none."""
    citations: NotRequired[list[Citation]]
    """Sources that tools of the provider found, in the order of the text; absent if there are none."""


class StatusEvent(TypedDict("_FromTo", {"from": str, "to": str}), _Event):
    """The session's status changed.

    `from` and `to` are values of `SessionStatus`.
    """

    type: Literal["status"]


Event: TypeAlias = (
    UserMessageEvent
    | PlanEvent
    | ToolCallEvent
    | ToolResultEvent
    | DelegationRequestEvent
    | DelegationResponseEvent
    | DelegationProgressEvent
    | BackgroundResultEvent
    | RecallEvent
    | SteeringEvent
    | ApprovalRequestEvent
    | ApprovalDecisionEvent
    | FeedbackEvent
    | RenameEvent
    | RevocationEvent
    | ForkEvent
    | SummaryEvent
    | LoopDetectedEvent
    | LimitEvent
    | ModelRequestEvent
    | MiddlewareEvent
    | HookEvent
    | WarningEvent
    | ErrorEvent
    | ProviderCallEvent
    | AgentResponseEvent
    | StatusEvent
)
"""One event as read, discriminated by `type`."""


def event(type_: str, step: int, /, **fields: Any) -> StoredEvent:
    """Create an event for the present time, and report it to this process's telemetry observer if there is one.

    Args:
        type_: The event's type.
        step: Number of the plan; 0 before the first plan of an input.
        fields: The fields of that type.
    """
    made = {"type": type_, "ts": datetime.now(UTC).isoformat(timespec="microseconds"), "step": step, **fields}
    # Observers see each event when it happens; a checkpoint has it at the end of the superstep.
    if telemetry.observer is not None:
        telemetry.observer.event(made)
    return made


def timestamp(ns: int) -> str:
    """Return a time, in nanoseconds since 1970, in the format of an event's `ts`."""
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="microseconds")


def seconds_since(ts: str) -> float:
    """Return the wall-clock seconds since an event's `ts`, to microseconds; 0.0 for a time in the future."""
    return max(0.0, round((datetime.now(UTC) - datetime.fromisoformat(ts)).total_seconds(), 6))


def append_events(state: list[StoredEvent], writes: Sequence[list[StoredEvent]]) -> list[StoredEvent]:
    """Reducer of the `events` channel: return the events followed by the written ones, in order."""
    joined = [*state]
    for write in writes:
        joined += write
    return joined


def read_events(stored: Iterable[Mapping[str, Any]], session_id: str, first: int = 0) -> list[Event]:
    """Return stored events with ``seq`` and ``session_id`` added; `first` is the index of the first one."""
    return [cast("Event", {**entry, "seq": seq, "session_id": session_id}) for seq, entry in enumerate(stored, first)]


_SOURCES = ("delegation", "middleware")
"""Fields of approvals that do not decide on calls of the agent's own wave."""


def is_approval(entry: Mapping[str, Any]) -> bool:
    """Whether an event is an approval request or decision of any source."""
    return entry["type"] in ("approval_request", "approval_decision")


def is_own(entry: Mapping[str, Any], type_: Literal["approval_request", "approval_decision"]) -> bool:
    """Whether an event is of this type, and the approval is for a call of the agent itself, asked by its own policy.

    It is not one of a delegate or of middleware, which the event names. Calls of delegates have ids of their own, which
    may equal those of the agent's calls.
    """
    return entry["type"] == type_ and not any(field in entry for field in _SOURCES)
