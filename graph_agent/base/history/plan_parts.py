"""Defines the parts of events that have fields of their own, most of them those of a `plan` event."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from graph_agent.base.types import Usage

SpeculationSource = Literal["streamed", "agreed", "predicted", "learned", "request"]
"""What began before a plan asked for it: a call of a plan that was still `streamed`, one that all candidates for a plan
`agreed` on, one of a `predicted` plan, or one that was `learned` from earlier sessions; or a `request` for a predicted
plan."""


Purpose = Literal["plan", "answer", "summary", "memory"]
"""What the reply to a model request is for; `memory` is the extraction of facts."""


class ModelCallRecord(TypedDict):
    """One request to a model: its times and its usage. Each attempt of a repeated request has a record of its own."""

    purpose: Purpose
    """What the reply is for; repairs and reruns have the purpose of the request that they repeat."""
    model: str
    """Name of the model as the provider reports it; else as configured, or the kind of the model."""
    started: str
    """When the request was sent: ISO 8601, UTC, microseconds."""
    duration_s: float
    """Seconds to the end of the reply, or to the error, on the monotonic clock."""
    first_token_s: NotRequired[float]
    """Seconds to the first token, on the monotonic clock; absent if the reply was not streamed."""
    input_tokens: NotRequired[int]
    """Tokens of the request; absent if the provider reported none."""
    output_tokens: NotRequired[int]
    """Tokens of the reply; absent if the provider reported none."""
    cost: NotRequired[float]
    """Cost in the currency of the `prices`; absent without prices or tokens."""
    error: NotRequired[str]
    """Kind of the model's error, or `cancelled`; absent for a complete reply."""


class PlannedCall(TypedDict):
    """One call of a plan; the `tool_call` event has its arguments."""

    id: str
    """Id of the call, unique in the session."""
    plan_id: NotRequired[str]
    """The model's own id of the call, which references and `needs` use, and a later plan may use again. Absent in older
    sessions, and for a call of no structured plan whose `id` is the model's own."""
    name: str
    """Name of the tool, or `delegate_to_<name>`."""
    needs: NotRequired[list[str]]
    """`plan_id` of each call of the same plan whose result it waits for; absent if there are none."""


class LeftOutCall(TypedDict):
    """A call that a fork leaves out, although it ran or may have run in the session that was copied."""

    session: str
    """Id of the session in which it ran: the copied session, or, for a call that the copied session had left out as a
    fork itself, the session of that call."""
    id: str
    """Id of the call in that session."""
    name: str
    """Name of the tool, or `delegate_to_<name>`."""
    fingerprint: str
    """The name and a hash of the arguments; equal calls have equal ones."""
    step: int
    """Number of its plan."""
    status: Literal["success", "unknown"]
    """`success` if it succeeded; `unknown` if it may have taken effect."""


class VersionsOfPlan(TypedDict):
    """Versions of prompts and tools: the first 8 hexadecimal digits of a SHA-256."""

    prompts: dict[str, str]
    """Name of a prompt → version of its text before variables: `system`, those that the agent replaces, and `built-in`
    for all others. Without `system` if a function of the program returns it."""
    tools: dict[str, str]
    """Name of a tool → version of its schema."""


class SpeculationCounts(TypedDict):
    """Numbers of calls or requests that began before a plan asked for them; a number is absent if it is 0."""

    started: NotRequired[int]
    """Those that began."""
    used: NotRequired[int]
    """Those whose results became results of a plan's calls; or, of requests, those whose plan was taken."""
    dropped: NotRequired[int]
    """Those that were of no use, and were cancelled if they still ran."""
    dropped_s: NotRequired[float]
    """Seconds that the dropped ones ran, added up."""
    cost: NotRequired[float]
    """Cost of the dropped requests, in the currency of the `prices`."""


class PlanCandidate(TypedDict):
    """One of several requests for the same plan."""

    status: Literal["chosen", "dropped", "cancelled", "failed"]
    """`chosen` for the plan that was taken; `cancelled` if the choice was certain before its end."""
    calls: NotRequired[list[dict[str, Any]]]
    """Name and arguments of its calls; absent without a plan."""
    usage: NotRequired[Usage]
    """Its usage; absent without a plan."""
    error: NotRequired[str]
    """Kind of the error; only if it failed."""
    model: NotRequired[str]
    """The model that was asked; absent if the candidate has none of its own."""


class PlanJudgement(TypedDict):
    """A request to a model to choose one of the different plans."""

    model: str
    """The model that was asked."""
    index: NotRequired[int]
    """Index of the chosen plan among those that differ, from 0; absent if the model named none."""
    usage: NotRequired[Usage]
    """Usage of the request; absent if it failed."""
