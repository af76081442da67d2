"""What a delegate is: something that answers a task in a run of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from langchain_core.messages import AnyMessage

from graph_agent.budgets import Left
from graph_agent.config import Price
from graph_agent.events.types import ResultStatus, StoredEvent
from graph_agent.prompts import Prompts
from graph_agent.state.schema import RemoteTask
from graph_agent.types import NO_USAGE, Usage, delegation_name

DEPTH_LEFT = "__graph_agent_depth_left"
"""Key in a delegated run's `configurable`: how many further delegations may nest."""
WATCHED = "__graph_agent_watched"
"""Key in a run's `configurable`: whether its custom stream takes the parts of delegates' runs.

What begins with two underscores stays out of checkpoints and traces.
"""


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
    context_id: str = ""
    """The conversation this session has with the delegate already; empty before the first."""
    tell: Callable[[str], None] = field(default=lambda text: None, repr=False, compare=False)
    """Takes a line about how the delegate gets on, for those who watch."""
    watch: Callable[[Any], None] | None = field(default=None, repr=False, compare=False)
    """Takes the parts of the delegate's run, where it runs in this process; None where nobody watches them."""
    used: Callable[[Usage], None] = field(default=lambda usage: None, repr=False, compare=False)
    """Takes what was used where no result will say so: call it before `run` raises, or is cancelled."""


@dataclass(frozen=True, slots=True)
class DelegationResult:
    """What came back."""

    content: str | list[Any]
    """Text, or LangChain content blocks; the question, while the delegate waits for a person."""
    status: ResultStatus = "success"
    usage: Usage = field(default_factory=lambda: NO_USAGE)
    value: Any = None
    """The result as plain JSON, for programs and references; None where it is the text of `content`."""
    artifact: Any = None
    """What is kept beside the message and not shown to the model, as plain JSON: files, structured data."""
    untrusted: bool = False
    """Whether nobody vouches for the content: the model is then shown it fenced."""
    context_id: str = ""
    """The conversation to go on with at the next delegation; empty for none."""
    waiting: RemoteTask | None = None
    """The task that waits for a person; its call is not answered yet."""
    history: list[StoredEvent] = field(default_factory=list)
    """The delegate's own events, where it is a graph of this process."""


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


@runtime_checkable
class AskingDelegate(Protocol):
    """A delegate whose tasks may stop to ask a person."""

    async def resume(self, delegation: Delegation, task: RemoteTask, answer: Any) -> DelegationResult:
        """Go on with a task that waited, with the person's answer; it may ask again."""
        ...

    async def withdraw(self, task: RemoteTask) -> None:
        """Tell whoever waits for an answer that none will come. Never raises, and takes a few seconds at most."""
        ...


@runtime_checkable
class LateDelegate(Protocol):
    """A delegate that learns what it is good for only when it is needed."""

    async def prepare(self) -> bool:
        """Learn it, unless it is known. Never raises.

        Returns:
            Whether the description has changed.
        """
        ...


async def withdraw(delegates: Mapping[str, Delegate], tasks: Mapping[str, RemoteTask]) -> None:
    """Tell the agents whose tasks wait for a person that no answer will come.

    Args:
        delegates: Call name → the delegate.
        tasks: Call id → the task.
    """
    withdrawn = []
    for task in tasks.values():
        delegate: Any = delegates.get(delegation_name(task["delegate"]))
        if isinstance(delegate, AskingDelegate):
            withdrawn.append(delegate.withdraw(task))
    await asyncio.gather(*withdrawn)


def delegate_schema(call_name: str, delegate: Delegate, prompts: Prompts) -> dict[str, Any]:
    """A delegate in OpenAI's function format."""
    return {
        "type": "function",
        "function": {
            "name": call_name,
            "description": prompts.render("delegate", name=delegate.name, description=delegate.description),
            "parameters": {
                "type": "object",
                "properties": {"task": {"type": "string", "description": "The task, complete in itself."}},
                "required": ["task"],
            },
        },
    }
