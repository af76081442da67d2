"""Defines the parts of a run's stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias

from graph_agent.session.run_result import RunCall, RunResult, Waiting
from graph_agent.state.events import Event, ResultStatus
from graph_agent.types import ResponseT, Usage

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
    "RunCall",
    "RunPart",
    "RunResult",
    "Token",
    "Usage",
    "Waiting",
]


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text of a message, which is the answer unless a `PlanText` with its `message_id` follows.

    The texts of the other tokens, joined, are `RunResult.answer`.
    """

    text: str
    type: Literal["token"] = "token"
    reports_failure: bool = False
    """Whether it reports a failure in place of the answer or of its rest."""
    message_id: str = field(default="", compare=False)
    """Id of the message; pieces of one message have the same id."""


@dataclass(frozen=True, slots=True)
class PlanText:
    """Text that is not the answer: that of a plan with calls, or an answer that the run has replaced."""

    text: str
    type: Literal["plan_text"] = "plan_text"
    message_id: str = field(default="", compare=False)
    """Id of the message whose streamed tokens turned out to be commentary; empty if no token was streamed."""


@dataclass(frozen=True, slots=True)
class CallState:
    """A call is about to run, or has its result; a call known not to run has its result only."""

    id: str
    name: str
    status: ResultStatus | Literal["started"]
    type: Literal["call"] = "call"


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of the run, as on the custom stream."""

    step: int
    action: Literal["tool_call", "delegate", "approval"]
    target: str
    type: Literal["progress"] = "progress"


@dataclass(frozen=True, slots=True)
class DelegateProgress:
    """A delegate's message on the progress of its work."""

    id: str
    """The delegation's call id."""
    target: str
    """The delegate."""
    text: str
    type: Literal["delegation_progress"] = "delegation_progress"


@dataclass(frozen=True, slots=True)
class Custom:
    """An object that code of the run, such as a tool, wrote to the custom stream (`get_stream_writer`)."""

    data: Any
    """The object."""
    type: Literal["custom"] = "custom"


@dataclass(frozen=True, slots=True)
class EventAdded:
    """An event was added to the history."""

    event: Event
    type: Literal["event"] = "event"


@dataclass(frozen=True, slots=True)
class DelegatePart:
    """A part of the run of a delegate in this process; its tokens do not belong to the agent's own answer."""

    id: str
    """The delegation's call id."""
    target: str
    """The delegate."""
    part: RunPart
    """The part; a `DelegatePart` again for a nested delegate. The `seq` of its events counts from 0."""
    type: Literal["delegate"] = "delegate"


@dataclass(frozen=True, slots=True)
class Done(Generic[ResponseT]):
    """The end of an input; the last part of every stream, and of each follow-up in it."""

    result: RunResult[ResponseT]
    type: Literal["done"] = "done"


RunPart: TypeAlias = Token | PlanText | CallState | Progress | DelegateProgress | DelegatePart | Custom | EventAdded
"""A part of a run in progress."""
if TYPE_CHECKING:
    Part: TypeAlias = RunPart | Done[ResponseT]
    """A part of `Session.stream`; a union tagged by `type`."""
else:
    # Without the argument, programs can pass the union to `isinstance`.
    Part = RunPart | Done
    """A part of `Session.stream`; a union tagged by `type`."""
