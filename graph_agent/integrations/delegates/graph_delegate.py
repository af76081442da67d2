"""Adapts a compiled graph in this process to a delegate; imports what runs it only at the first run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from langgraph.graph.state import CompiledStateGraph

from graph_agent.base.errors import ConfigError
from graph_agent.session.built_agent import builder_of

if TYPE_CHECKING:
    from graph_agent.base.delegate_tasks import BackgroundTask, RemoteTask
    from graph_agent.core.extensions.delegation import Delegation, DelegationResult
    from graph_agent.integrations.delegates.graph import BackgroundRuns, DelegatedGraph


@dataclass(frozen=True)
class GraphDelegate:
    """Answers delegations by another compiled graph: an agent, or any graph whose state has `messages`.

    The graph receives the conversation's last messages and the task, and has a history of its own. Its model's tokens
    are not in the delegating agent's stream; `Session.stream` yields them in `DelegatePart`s. Raises `ConfigError` if
    `graph` is not compiled, or `background` is set for a graph that is not an agent.
    """

    name: str
    """The name after `delegate_to_`."""
    description: str
    """The delegate's purpose, for the model."""
    graph: CompiledStateGraph[Any, Any, Any, Any]
    """The compiled graph."""
    background: bool = False
    """Whether the model may run tasks in the background, with `background=true`; for agents of this package only."""
    source: Literal["trusted", "untrusted"] = "untrusted"
    """Whether outsiders can write the answers; for the setting `origins` of the delegating agent."""

    def __post_init__(self) -> None:
        if not hasattr(self.graph, "ainvoke"):
            raise ConfigError(
                f"The delegate {self.name!r} needs a compiled graph, not {self.graph!r}; compile it first."
            )
        if self.background and builder_of(self.graph) is None:
            raise ConfigError(
                f"The delegate {self.name!r} has background=True, and its graph {self.graph!r} is no agent; make it "
                "with create_graph_agent()."
            )

    @property
    def resumes(self) -> bool:
        """Whether a run continues where it stopped, because it is stored in the caller's checkpoints or its own.

        A graph compiled with `checkpointer=False` stores nothing, and is run again from the beginning.
        """
        return self._delegated.resumes

    async def run(self, delegation: Delegation) -> DelegationResult:
        """Run the graph on the task, and return its answer, or the approval request for which it waits.

        A task in the background is only started, if that is possible (see `BackgroundRuns.start`), and runs in the
        foreground otherwise. Raises what the graph raises, except a failed run, which is an error result.
        """
        if delegation.background and (started := await self._in_background.start(delegation)) is not None:
            return started
        return await self._delegated.run(delegation)

    async def resume(self, delegation: Delegation, task: RemoteTask, answer: Any) -> DelegationResult:
        """Continue a run that waits for approval with the reviewer's answer, and return its answer, or its next
        request.

        Invalid decisions return the same request with an error.
        """
        return await self._delegated.resume(delegation, task, answer)

    async def has_continued(self, task: RemoteTask) -> bool:
        """Whether an earlier attempt of the running call, before a crash, has resumed the delegate's run already."""
        return await self._delegated.has_continued(task)

    async def withdraw(self, task: RemoteTask) -> None:
        """Do nothing, because a waiting run holds no resources."""

    async def collect(self, id_: str, task: BackgroundTask) -> DelegationResult | None:
        """Return the result or a new question of a task in the background; None while it has neither.

        A task whose run was lost, e.g. with its process, is started again.
        """
        return await self._in_background.collect(id_, task)

    async def wait(self, task: BackgroundTask) -> None:
        """Wait until a task in the background ends or asks; never ends for a task whose question was returned."""
        await self._in_background.wait(task)

    @property
    def _in_background(self) -> BackgroundRuns:
        """The object that runs the delegate's background tasks; what it needs is imported at the first use."""
        from graph_agent.integrations.delegates.graph import BackgroundRuns  # as below

        return BackgroundRuns(self.name, self.graph)

    @property
    def _delegated(self) -> DelegatedGraph:
        """The object that runs the delegate in the call itself; what it needs is imported at the first use."""
        # Imported here: see the module docstring.
        from graph_agent.integrations.delegates.graph import DelegatedGraph

        return DelegatedGraph(self.name, self.graph)
