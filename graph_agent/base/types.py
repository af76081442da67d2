"""Defines base types without dependencies: statuses, calls, usage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Concatenate, Literal, NotRequired, ParamSpec

from typing_extensions import TypedDict, TypeVar

ResponseT = TypeVar("ResponseT", covariant=True, default=Any)
"""Type of the answer by the agent's `response_format`; None for an agent without one."""
ContextT = TypeVar("ContextT", contravariant=True, default=Any)
"""Class of a run's context, the agent's `context_schema`."""
P = ParamSpec("P")
OwnerT = TypeVar("OwnerT")
ReturnT = TypeVar("ReturnT")

HIDDEN_ID_PREFIX = "do-not-render-"
"""Prefix of the ids of messages that are for the model only; chat clients of this ecosystem hide them."""


class SessionStatus(StrEnum):
    """Status of a session. New input sets any status but `CREATED` and `RUNNING` back to `RUNNING`."""

    CREATED = "CREATED"
    """No input yet."""
    RUNNING = "RUNNING"
    """An input runs, waits for a person, or was interrupted, from the moment that it is stored."""
    COMPLETED = "COMPLETED"
    """The last input has an answer."""
    FAILED = "FAILED"
    """The last input ended with an error, which its history has."""
    ABORTED = "ABORTED"
    """The last input was aborted."""
    ROUND_LIMIT = "ROUND_LIMIT"
    """A limit ended the last input: steps, tokens, cost, the deadline or a loop."""
    TURN_LIMIT = "TURN_LIMIT"
    """The session's `max_turns` ended the last input."""


StopReason = Literal[
    "completed",
    "step_limit",
    "recursion_limit",
    "turn_limit",
    "token_limit",
    "cost_limit",
    "deadline",
    "loop",
    "aborted",
    "failed",
]

CutOff = Literal["length", "content_filter", "interrupted"]
"""Cause of a cut-off reply: the maximum length, a content filter, or a failure of the provider."""

STATUS_OF: dict[StopReason, SessionStatus] = {
    "completed": SessionStatus.COMPLETED,
    "step_limit": SessionStatus.ROUND_LIMIT,
    "recursion_limit": SessionStatus.ROUND_LIMIT,
    "turn_limit": SessionStatus.TURN_LIMIT,
    "token_limit": SessionStatus.ROUND_LIMIT,
    "cost_limit": SessionStatus.ROUND_LIMIT,
    "deadline": SessionStatus.ROUND_LIMIT,
    "loop": SessionStatus.ROUND_LIMIT,
    "aborted": SessionStatus.ABORTED,
    "failed": SessionStatus.FAILED,
}
"""The status a session ends in, by the reason it stopped."""


def with_parameters_of(
    source: Callable[Concatenate[Any, P], object],
) -> Callable[[Callable[Concatenate[OwnerT, ...], ReturnT]], Callable[Concatenate[OwnerT, P], ReturnT]]:
    """Make a type checker give a method with `**options` the parameters of another method."""
    return lambda method: method


def with_fields_of(
    source: Callable[P, object],
) -> Callable[[Callable[Concatenate[OwnerT, ...], ReturnT]], Callable[Concatenate[OwnerT, P], ReturnT]]:
    """Behaves like `with_parameters_of`, for the fields of a class."""
    return lambda method: method


class Usage(TypedDict):
    """Tokens and model calls of one input, hooks' and delegates' included."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    model_calls: int
    cost: NotRequired[float]
    """Cost of the calls, in the price table's currency; absent without prices."""
    fresh: NotRequired[bool]
    """Only in a write: reset the sum to this value."""


NO_USAGE: Usage = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0, "model_calls": 0}


class Call(TypedDict):
    """One tool call, or one delegation when the name is `delegate_to_<name>`."""

    id: str
    """Unique within the session once planned, and never empty then; before, unique within its reply."""
    name: str
    """The tool's own name, dots included."""
    arguments: dict[str, Any]
    """Plain JSON values; empty for a call without arguments."""
    plan_id: NotRequired[str]
    """The model's own id, by which references and `needs` name a call of a structured plan. Absent if `id` is the
    model's own one, except in structured plans."""
    needs: NotRequired[list[str]]
    """`plan_id` of each call of the same wave whose result this call needs; absent or empty if there are none."""
    fault: NotRequired[str]
    """Why the call cannot be run; this text becomes its result, with the status `invalid`."""
    skipped: NotRequired[Literal[True]]
    """The `fault` is not of the call itself, so that its status is `skipped`; absent for others."""
    denied_by: NotRequired[str]
    """The mechanism that refuses the call, whose `fault` is the reason; its status is `denied`. Absent for others."""


def plan_id_of(call: Mapping[str, Any]) -> str:
    """Return the id by which the model knows a call; the stored id if it is the same one."""
    return str(call.get("plan_id", call["id"]))


def needed_ids(plan: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the ids of the calls that each call of a `plan` event needs, by its id; the event has their plan ids."""
    ids = {plan_id_of(call): call["id"] for call in plan["calls"]}
    return {call["id"]: tuple(ids.get(need, need) for need in call.get("needs", ())) for call in plan["calls"]}


MAX_DEPTH = 200
"""Maximum nesting of arguments, in levels: the interpreter allows 1,000 frames, and the caller uses some of them."""
