"""The session's history: one append-only list of small dictionaries.

A stored event has ``type``, ``ts`` (ISO 8601, UTC) and ``step``; ``seq`` (its index) and ``session_id`` are added when
it is read, so that a stored event never repeats what its place already says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NotRequired, TypeAlias, cast

from typing_extensions import TypedDict

IN_HISTORY = {"in_history": True}
"""`extra` of a log record whose words the history has too, so that who shows the one can leave out the other."""

ResultStatus = Literal["success", "error", "unknown", "skipped"]
"""How a call ended: `unknown` when it may have run and nobody can say, `skipped` when it never started."""

StoredEvent: TypeAlias = dict[str, Any]
"""One event as the state holds it: `type`, `ts`, `step` and the fields of its type."""


class _Event(TypedDict):
    seq: int
    """Index in the session's history, from 0."""
    ts: str
    """When it happened: ISO 8601, UTC, microseconds."""
    session_id: str
    step: int
    """The plan it belongs to, from 1; 0 before the first plan of an input."""


class UserMessageEvent(_Event):
    """The user said something."""

    type: Literal["user_message"]
    content: str | list[Any]


class PlannedCall(TypedDict):
    """One call of a plan; its arguments are in the `tool_call` event."""

    id: str
    name: str
    needs: NotRequired[list[str]]
    """Ids of calls of the same plan that it waits for; absent for none."""


class PlanEvent(_Event):
    """The model planned a step."""

    type: Literal["plan"]
    status: Literal["continue", "done"]
    action: str
    """What it set out to do."""
    reasoning: str
    """What it said beside its calls."""
    calls: list[PlannedCall]
    slots: NotRequired[Any]
    """Parameters read from the user's message; only with structured planning."""
    reruns: NotRequired[int]
    """How many times hooks had the model asked again for this plan; absent for none."""
    planner: NotRequired[Literal["wave", "dag"]]
    """Which planner this session has; only with structured planning."""
    cached: NotRequired[Literal[True]]
    """The plan was taken from the cache; absent when the model made it."""


class ToolCallEvent(_Event):
    """A tool call is about to run."""

    type: Literal["tool_call"]
    id: str
    name: str
    arguments: dict[str, Any]


class ToolResultEvent(_Event):
    """A tool call has its result."""

    type: Literal["tool_result"]
    id: str
    name: str
    status: ResultStatus
    content: str | list[Any]
    """The whole output, whatever the model was shown of it."""
    truncated: bool
    """Whether the model was shown less."""
    encoding: NotRequired[Literal["json"]]
    """The text of `content` is the JSON of the result's value; absent where the content is the value."""
    value: NotRequired[Any]
    """The result's value, where `content` does not determine it; see `graph_agent.events.values`."""


class DelegationRequestEvent(_Event):
    """A task is about to be handed to a delegate."""

    type: Literal["delegation_request"]
    id: str
    target: str
    task: str


class DelegationResponseEvent(_Event):
    """A delegate answered."""

    type: Literal["delegation_response"]
    id: str
    target: str
    status: ResultStatus
    content: str | list[Any]
    encoding: NotRequired[Literal["json"]]
    """As for a `tool_result`."""
    value: NotRequired[Any]
    """As for a `tool_result`."""
    untrusted: NotRequired[Literal[True]]
    """Nobody vouches for the content; absent for a delegate of this process."""
    history: NotRequired[list[StoredEvent]]
    """What the delegate did, event by event, where it is a graph of this process; absent for none."""


class DelegationProgressEvent(_Event):
    """A delegate told how it gets on."""

    type: Literal["delegation_progress"]
    id: str
    target: str
    content: str


class SteeringEvent(_Event):
    """The user spoke while the agent was at work."""

    type: Literal["steering"]
    content: str | list[Any]
    """What they said: text, or content blocks where it is more than text."""


class LoopDetectedEvent(_Event):
    """The model repeats itself."""

    type: Literal["loop_detected"]
    pattern: list[str]
    """Names of the tools and delegations of one period, oldest first."""
    count: int
    """How many times in a row the pattern stands at the end of the calls."""
    repeated: Literal["calls", "calls and results", "results"]
    """Equal calls with different results; equal calls with equal results; equal results of different arguments."""


class LimitEvent(_Event):
    """A limit ended planning."""

    type: Literal["limit"]
    reason: str
    limit: float


class WarningEvent(_Event):
    """Something is not as it should be, and the run goes on."""

    type: Literal["warning"]
    message: str


class ErrorEvent(_Event):
    """Something failed for good."""

    type: Literal["error"]
    kind: str
    message: str
    """One sentence for a person."""


class AgentResponseEvent(_Event):
    """The agent answered, or an input that failed ended with an account."""

    type: Literal["agent_response"]
    content: str | list[Any]
    truncated: NotRequired[Literal["length", "content_filter", "interrupted"]]
    """What cut the answer off; absent for a whole one."""
    error: NotRequired[str]
    """The kind of the error that kept the answer, or the rest of it, from being had; absent for none."""


class StatusEvent(TypedDict("_FromTo", {"from": str, "to": str}), _Event):
    """The session's status changed."""

    type: Literal["status"]


Event: TypeAlias = (
    UserMessageEvent
    | PlanEvent
    | ToolCallEvent
    | ToolResultEvent
    | DelegationRequestEvent
    | DelegationResponseEvent
    | DelegationProgressEvent
    | SteeringEvent
    | LoopDetectedEvent
    | LimitEvent
    | WarningEvent
    | ErrorEvent
    | AgentResponseEvent
    | StatusEvent
)
"""One event as it is read, told apart by `type`."""


def event(type_: str, step: int, /, **fields: Any) -> StoredEvent:
    """Make one event, stamped with the current time.

    Args:
        type_: The event's type, one of those of `Event`.
        step: The plan it belongs to, from 1; 0 before the first plan.
        fields: The fields of that type.
    """
    return {"type": type_, "ts": datetime.now(UTC).isoformat(timespec="microseconds"), "step": step, **fields}


def append_events(state: list[StoredEvent], writes: Sequence[list[StoredEvent]]) -> list[StoredEvent]:
    """Reducer of the event channel: the writes, in order, after what is there."""
    return [*state, *(entry for write in writes for entry in write)]


def read_events(stored: Iterable[Mapping[str, Any]], session_id: str) -> list[Event]:
    """Give stored events their ``seq`` and ``session_id``."""
    return [cast("Event", {**entry, "seq": seq, "session_id": session_id}) for seq, entry in enumerate(stored)]
