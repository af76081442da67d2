"""What a delegate is: something that answers a task in a run of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from langchain_core.messages import AnyMessage

from graph_agent.budget import Left
from graph_agent.config import Price
from graph_agent.events import ResultStatus
from graph_agent.types import NO_USAGE, Usage

CALL_PREFIX = "delegate_to_"
DEPTH_LEFT = "graph_agent_depth_left"
"""Key in a delegated run's `configurable`: how many further delegations may nest."""


@dataclass(frozen=True, slots=True)
class Delegation:
    """One task for a delegate."""

    id: str
    """The call's id."""
    task: str
    """The task, in the model's words."""
    context: list[AnyMessage]
    """The conversation's last messages, text only, oldest first."""
    session_id: str
    """The delegating session; empty without one."""
    depth_left: int
    """How many further delegations may nest below this one."""
    left: Left = field(default_factory=Left)
    """What the delegate may spend; no limit by default."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """What its models cost; empty for unknown."""


@dataclass(frozen=True, slots=True)
class DelegationResult:
    """What came back."""

    content: str
    status: ResultStatus = "success"
    usage: Usage = field(default_factory=lambda: NO_USAGE)


class Delegate(Protocol):
    """Anything with a name and a description that can be handed a task.

    One with an attribute `resumes` that is true goes on where it stopped when the same delegation is run again; any
    other is not asked twice for one call.
    """

    @property
    def name(self) -> str:
        """The name behind ``delegate_to_``; letters, digits, `_` and `-`."""
        ...

    @property
    def description(self) -> str:
        """What it is good for, for the model."""
        ...

    async def run(self, delegation: Delegation) -> DelegationResult:
        """Answer the task. An exception becomes an error result of that call alone."""
        ...
