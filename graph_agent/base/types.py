"""Defines the base types of sessions, calls and usage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Concatenate, Literal, NotRequired, ParamSpec

from typing_extensions import TypedDict, TypeVar

from graph_agent.base.origins import TracedCall as TracedCall

ResponseT = TypeVar("ResponseT", covariant=True, default=Any)
"""Type of the answer according to the agent's `response_format`; None for an agent without one."""
ContextT = TypeVar("ContextT", contravariant=True, default=Any)
"""Class of a run's context: the agent's `context_schema`."""
P = ParamSpec("P")
OwnerT = TypeVar("OwnerT")
ReturnT = TypeVar("ReturnT")

OK = "ok"
"""Status of a part that works, in reports of a process's health: a model's endpoint, an MCP server, or the database."""
CLIENT_CALL = "client_tool_call"
"""The `type` in the value of an interrupt for a client tool, one that the caller of the run executes.

The value also has the call's `id`, `name` and `arguments`.
"""
HIDDEN_ID_PREFIX = "do-not-render-"
"""Prefix of the ids of messages that are for the model only; chat clients of this ecosystem hide them."""


class SessionStatus(StrEnum):
    """Status of a session. New input sets every status but `RUNNING` to `RUNNING`."""

    CREATED = "CREATED"
    """The session has had no input yet."""
    RUNNING = "RUNNING"
    """An input is stored and not finished: it runs, waits for a reviewer, or was interrupted."""
    COMPLETED = "COMPLETED"
    """The last input has an answer."""
    FAILED = "FAILED"
    """The last input ended with an error, which is an event of the history."""
    ABORTED = "ABORTED"
    """The last input was aborted."""
    ROUND_LIMIT = "ROUND_LIMIT"
    """A limit ended the last input: steps, tokens, cost, the deadline, or a detected loop."""
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
"""Why an input ended: `completed` with an answer, a limit, a detected `loop`, an abort, or a failure."""

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
"""Reason for which an input ended → status of the session."""


def with_parameters_of(
    source: Callable[Concatenate[Any, P], object],
) -> Callable[[Callable[Concatenate[OwnerT, ...], ReturnT]], Callable[Concatenate[OwnerT, P], ReturnT]]:
    """Return a decorator that gives a method with `**options` the parameters of the function `source`.

    It is for type checkers only: the decorator returns the method unchanged.
    """
    return lambda method: method


def with_fields_of(
    source: Callable[P, object],
) -> Callable[[Callable[Concatenate[OwnerT, ...], ReturnT]], Callable[Concatenate[OwnerT, P], ReturnT]]:
    """Return a decorator that gives a method with `**options` the constructor parameters of the class `source`.

    It is for type checkers only: the decorator returns the method unchanged.
    """
    return lambda method: method


class Usage(TypedDict):
    """Tokens and model calls of one input, including those of its hooks and delegates."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    model_calls: int
    cost: NotRequired[float]
    """Cost of the calls in the currency of `prices`; absent without prices."""
    fresh: NotRequired[bool]
    """True in a state update that replaces the sum by this value, where other updates are added to it.

    Absent otherwise.
    """


NO_USAGE: Usage = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0, "model_calls": 0}


class Call(TracedCall):
    """One tool call, or one delegation to another agent if the name is `delegate_to_<name>`."""

    id: str
    """Not empty and unique in the session once the call is planned; before that, unique in its reply."""
    name: str
    """The tool's own name, which may contain dots."""
    arguments: dict[str, Any]
    """Plain JSON values; empty for a call without arguments."""
    plan_id: NotRequired[str]
    """The id that the model wrote, to which references and `needs` of a structured plan refer.

    Outside structured plans it is absent if it equals `id`.
    """
    needs: NotRequired[list[str]]
    """`plan_id` of each call of the same parallel batch (wave) whose result this call needs; absent if none."""
    template: NotRequired[dict[str, Any]]
    """The arguments as the model wrote them, with references to results of earlier waves.

    Absent unless origins are traced.
    """
    fault: NotRequired[str]
    """Why the call cannot be run. The text becomes the call's result, with the status `invalid`."""
    skipped: NotRequired[Literal[True]]
    """Set if the `fault` has its cause outside the call, so that the status is `skipped`; otherwise absent."""
    denied_by: NotRequired[str]
    """Name of the mechanism that refused the call, so that the status is `denied`; otherwise absent.

    `fault` has the reason.
    """


def plan_id_of(call: Mapping[str, Any]) -> str:
    """Return the id by which the model knows a call: its `plan_id`, or its `id` if it has none."""
    return str(call.get("plan_id", call["id"]))


def needed_ids(plan: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return call id → ids of the calls whose results the call needs, for the calls of a `plan` event.

    The event itself has the plan's ids; a need that names no call of the event is kept unchanged.
    """
    ids = {plan_id_of(call): call["id"] for call in plan["calls"]}
    return {call["id"]: tuple(ids.get(need, need) for need in call.get("needs", ())) for call in plan["calls"]}


MAX_DEPTH = 200
"""Maximum nesting of arguments: the interpreter allows 1,000 frames, and the caller uses some of them."""


class ClientResult(TypedDict):
    """The value that resumes the interrupt of a client tool call."""

    content: str | list[Any]
    """The output: text, or LangChain content blocks."""
    status: str
    """`success`, or `error` if the tool failed."""


class Citation(TypedDict, total=False):
    """A source that a part of the answer names."""

    url: str
    title: str
    start: int
    """Index of the first character of the answer that the source supports; absent if the provider reports none."""
    end: int
    """Index behind the last character."""
    cited_text: str
    """The text of the source."""
