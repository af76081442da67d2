"""Results of runs, and the parts of their streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from graph_agent.events.types import Event
from graph_agent.session.run_result import RunResult, Waiting

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
    "RunPart",
    "RunResult",
    "Token",
    "Waiting",
]


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the answer's text."""

    text: str
    type: Literal["token"] = "token"
    reports_failure: bool = False
    """Whether it reports a failure in place of the answer or of its rest."""


@dataclass(frozen=True, slots=True)
class PlanText:
    """The text of a plan that has calls.

    If planning may answer (`finalize` is `auto` or `direct`), it may have been streamed as tokens before.
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
class Done:
    """The end of an input; the last part of every stream, and of each follow-up in it."""

    result: RunResult
    type: Literal["done"] = "done"


RunPart: TypeAlias = Token | PlanText | CallState | Progress | DelegateProgress | DelegatePart | Custom | EventAdded
"""A part of a run in progress."""
Part: TypeAlias = RunPart | Done
"""A part of `Session.stream`; a union tagged by `type`."""
