"""Defines the delegate protocol: an agent that answers a task in a run of its own.

A delegation is one call `delegate_to_<name>` of the model, which hands a task to the delegate of that name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from langchain_core.messages import AnyMessage

from graph_agent.base.delegate_tasks import BackgroundTask, RemoteTask
from graph_agent.base.history.call_events import CallResult
from graph_agent.base.history.events import StoredEvent
from graph_agent.base.settings.config import Price
from graph_agent.base.types import NO_USAGE, Usage
from graph_agent.base.usage import RemainingBudget

DEPTH_LEFT = "__graph_agent_depth_left"
"""Key in a delegated run's `configurable`: number of further levels of delegation that the run may use."""


HANDED_PARTS = "__graph_agent_untrusted_parts"
"""Key in a delegated run's `configurable`: the parts of its task that come from untrusted text."""


@dataclass(frozen=True, slots=True)
class Delegation:
    """One task for a delegate, with what the delegate needs to answer it."""

    id: str
    """Id of the call that delegates the task."""
    task: str
    """The task, in the model's words."""
    context: list[AnyMessage]
    """The last messages of the conversation, text only, oldest first."""
    session_id: str
    """Id of the delegating session; empty without one."""
    depth_left: int
    """Number of further levels of delegation that the delegate may use."""
    budget: RemainingBudget = field(default_factory=RemainingBudget)
    """Limits of time, tokens and cost for the delegate; none by default."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """Prices of models by name, to compute costs; empty if they are unknown."""
    context_id: str = ""
    """Id of the session's existing conversation with the delegate; empty before the first delegation."""
    untrusted: tuple[str, ...] = ()
    """Parts of the task that the delegating agent has from untrusted text, if it traces `origins`; empty if not."""
    background: bool = False
    """Whether the model asked for the task to run in the background; only for a `BackgroundDelegate`."""
    # Functions do not take part in comparisons: two equal tasks have different ones.
    report_progress: Callable[[str], None] = field(default=lambda text: None, repr=False, compare=False)
    """Called with one line of text about the delegate's progress."""
    watch: Callable[[Any], None] | None = field(default=None, repr=False, compare=False)
    """Called with each part of a delegate's run in this process; None if the parts are not streamed."""
    record_usage: Callable[[Usage], None] = field(default=lambda usage: None, repr=False, compare=False)
    """Called by the delegate with its usage, before `run` raises or is cancelled, so that usage without a result
    counts."""


@dataclass(frozen=True, slots=True)
class DelegationResult(CallResult):
    """The result of a delegation; the `content` is the question while the delegate waits for a person."""

    usage: Usage = field(default_factory=lambda: NO_USAGE)
    """Tokens and model calls of the delegate's run; zeros if unknown."""
    value: Any = None
    """The result as plain JSON, for programs and references; None if it is the text of `content`."""
    untrusted: bool = False
    """Whether the content comes from another process, so that the model gets it inside markers (see `fenced`)."""
    context_id: str = ""
    """Id of the conversation to continue at the next delegation; empty if there is none."""
    waiting: RemoteTask | None = None
    """The task that waits for a person, so that the call has no result yet; None otherwise."""
    background: BackgroundTask | None = None
    """The task that goes on in the background; None otherwise."""
    history: list[StoredEvent] = field(default_factory=list)
    """The delegate's own events, if it is a graph of this process; empty otherwise."""
    approvals: list[StoredEvent] = field(default_factory=list)
    """The delegate's approval events since its last question, for the history of the delegating session."""


def started_in_background(
    delegation: Delegation, delegate: str, session_id: str, context: list[AnyMessage]
) -> DelegationResult:
    """Return the result of a delegation whose task goes on in the background; the content is a notice for the model.

    Args:
        delegation: The task.
        delegate: Name of the delegate.
        session_id: Id of the session that runs the task; for a remote agent, id of the task there.
        context: Messages that are needed to start the task again; empty for a remote agent.
    """
    task: BackgroundTask = {
        "delegate": delegate,
        "session_id": session_id,
        "task": delegation.task,
        "context": context,
        "budget": delegation.budget.as_json(),
        # A later run, perhaps in another process, starts the task again from these fields alone.
        "depth_left": delegation.depth_left,
    }
    if delegation.untrusted:
        task["untrusted"] = [*delegation.untrusted]
    return DelegationResult(_STARTED.format(id=delegation.id), background=task)


_STARTED = (
    "Started in the background as task {id}. Its result follows as a notice; go on with other work, or call "
    "wait_for_background."
)
"""Notice for the model; `{id}` takes the call's id."""


class Delegate(Protocol):
    """An agent with a name and a description that answers tasks.

    A delegate with a true attribute `resumes` continues where it stopped when the same delegation is run again. Any
    other delegate is run at most once for a call.
    """

    @property
    def name(self) -> str:
        """The name in `delegate_to_<name>`: 1 to 50 letters, digits, `_` and `-`."""
        ...

    @property
    def description(self) -> str:
        """What the delegate is for, as text for the model."""
        ...

    async def run(self, delegation: Delegation) -> DelegationResult:
        """Answer the task, and return the result. An exception becomes an error result of that call alone."""
        ...


@runtime_checkable
# Protocols of their own, so that a simple delegate needs only `run`.
class AskingDelegate(Protocol):
    """A delegate whose tasks may wait for a person."""

    async def resume(self, delegation: Delegation, task: RemoteTask, answer: Any) -> DelegationResult:
        """Continue a waiting task with the person's answer, and return the result, which may wait for a person
        again."""
        ...

    async def withdraw(self, task: RemoteTask) -> None:
        """Cancel a waiting task, because no answer will come. Never raises, and takes a few seconds at most."""


@runtime_checkable
class ContinuingDelegate(Protocol):
    """A delegate that stores how far a task has continued after its question."""

    async def has_continued(self, task: RemoteTask) -> bool:
        """Whether an earlier attempt of this call has continued the task, so that its question has an answer."""
        ...


@runtime_checkable
class LateDelegate(Protocol):
    """A delegate whose description is loaded at first use, such as from a remote agent's card."""

    async def prepare(self) -> bool:
        """Load the description, unless it is loaded; return whether it has changed. Never raises."""
        ...


@runtime_checkable
class BackgroundDelegate(Protocol):
    """A delegate whose tasks may go on after the call that delegated them.

    If `Delegation.background` is set, `run` only starts the task, and returns a result with `background`.
    """

    @property
    def background(self) -> bool:
        """Whether the model may start tasks in the background."""
        ...

    async def collect(self, id_: str, task: BackgroundTask) -> DelegationResult | None:
        """Return the result of a task that has ended; None while it runs. A task that no process runs is continued.

        Args:
            id_: Id of the call that started the task.

        Returns:
            The result; if the task waits for a person, a result with `background` that has the question.
        """
        ...

    async def wait(self, task: BackgroundTask) -> None:
        """Wait until no process runs the task: it has ended, waits for a person, or was stopped."""
