"""Defines the delegate protocol: an agent that answers a task in a run of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from langchain_core.messages import AnyMessage

from graph_agent.base.settings.config import Price
from graph_agent.base.types import NO_USAGE, Usage
from graph_agent.base.usage import RemainingBudget
from graph_agent.core.state.call_events import CallResult
from graph_agent.core.state.channels import BackgroundTask, RemoteTask
from graph_agent.core.state.events import StoredEvent

DEPTH_LEFT = "__graph_agent_depth_left"
"""Key in a delegated run's `configurable`: remaining depth of nested delegations."""


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
    """Remaining depth of delegations below this one."""
    budget: RemainingBudget = field(default_factory=RemainingBudget)
    """Budget of the delegate; no limit by default."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """Prices of its models; empty for unknown."""
    context_id: str = ""
    """The session's existing conversation with the delegate; empty before the first delegation."""
    background: bool = False
    """Whether the model asked for the task to run in the background; only for a `BackgroundDelegate`."""
    report_progress: Callable[[str], None] = field(default=lambda text: None, repr=False, compare=False)
    """Called with a line on the delegate's progress."""
    watch: Callable[[Any], None] | None = field(default=None, repr=False, compare=False)
    """Called with each part of a delegate's run in this process; None if the parts are not streamed."""
    record_usage: Callable[[Usage], None] = field(default=lambda usage: None, repr=False, compare=False)
    """Called with the usage of a delegation without a result: call it before `run` raises or is cancelled."""


@dataclass(frozen=True, slots=True)
class DelegationResult(CallResult):
    """The result of a delegation; its `content` is the question while the delegate waits for a person."""

    usage: Usage = field(default_factory=lambda: NO_USAGE)
    """Tokens and model calls of the delegate's run; zero if unknown."""
    value: Any = None
    """The result as plain JSON, for programs and references; None if it is the text of `content`."""
    untrusted: bool = False
    """Whether the content is untrusted, so that the model gets it inside a fence."""
    context_id: str = ""
    """The conversation to continue at the next delegation; empty if there is none."""
    waiting: RemoteTask | None = None
    """The task that waits for a person, whose call has no result yet; None otherwise."""
    background: BackgroundTask | None = None
    """The task that runs on in the background; None otherwise."""
    history: list[StoredEvent] = field(default_factory=list)
    """The delegate's own events, if it is a graph of this process."""
    approvals: list[StoredEvent] = field(default_factory=list)
    """The delegate's own approval events since the last question, for the history of the delegating session."""


def started_in_background(
    delegation: Delegation, delegate: str, session_id: str, context: list[AnyMessage]
) -> DelegationResult:
    """Return the result of a delegation whose task runs in the background, in a session or a remote agent's task.

    `context` has the messages that a repeated start needs.
    """
    task: BackgroundTask = {
        "delegate": delegate,
        "session_id": session_id,
        "task": delegation.task,
        "context": context,
        "budget": delegation.budget.as_json(),
        "depth_left": delegation.depth_left,
    }
    return DelegationResult(_STARTED.format(id=delegation.id), background=task)


_STARTED = (
    "Started in the background as task {id}. Its result follows as a notice; go on with other work, or call "
    "wait_for_background."
)


class Delegate(Protocol):
    """An agent with a name and a description that answers tasks.

    A delegate with a true attribute `resumes` continues where it stopped when the same delegation is run again. Any
    other delegate is run once per call.
    """

    @property
    def name(self) -> str:
        """The name after `delegate_to_`; letters, digits, `_` and `-`."""
        ...

    @property
    def description(self) -> str:
        """Its purpose, for the model."""
        ...

    async def run(self, delegation: Delegation) -> DelegationResult:
        """Answer the task. An exception becomes an error result of that call alone."""
        ...


@runtime_checkable
class AskingDelegate(Protocol):
    """A delegate whose tasks may wait for a person."""

    async def resume(self, delegation: Delegation, task: RemoteTask, answer: Any) -> DelegationResult:
        """Continue a waiting task with the person's answer; it may wait again."""
        ...

    async def withdraw(self, task: RemoteTask) -> None:
        """Cancel a waiting task, as no answer will come. Never raises, and takes a few seconds at most."""
        ...


@runtime_checkable
class ContinuingDelegate(Protocol):
    """A delegate that stores the progress of a task after its question."""

    async def has_continued(self, task: RemoteTask) -> bool:
        """Whether an earlier attempt of this call has continued the task, so that its question has an answer."""
        ...


@runtime_checkable
class LateDelegate(Protocol):
    """A delegate that loads its description at first use, such as from an agent card."""

    async def prepare(self) -> bool:
        """Load the description, unless it is loaded. Never raises.

        Returns:
            Whether the description has changed.
        """
        ...


@runtime_checkable
class BackgroundDelegate(Protocol):
    """A delegate whose tasks may go on after the run that delegated them.

    Its `run` starts the task and returns a result with `background` if `Delegation.background` is set.
    """

    @property
    def background(self) -> bool:
        """Whether the model may run tasks in the background."""
        ...

    async def collect(self, id_: str, task: BackgroundTask) -> DelegationResult | None:
        """Return the result of a task that has ended; a task that no process runs is continued.

        Args:
            id_: The call's id.

        Returns:
            None while the task runs. A result with `background` has the new question of a task that waits for a person.
        """
        ...

    async def wait(self, task: BackgroundTask) -> None:
        """Wait until no process runs the task."""
        ...
