"""Adapts a compiled graph in this process to a delegate; imports the execution of agents at its first run only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langgraph.graph.state import CompiledStateGraph

from graph_agent.base.errors import ConfigError
from graph_agent.session.built_agent import builder_of

if TYPE_CHECKING:
    from graph_agent.core.delegation import Delegation, DelegationResult
    from graph_agent.core.state.channels import BackgroundTask, RemoteTask
    from graph_agent.integrations.delegates.graph import BackgroundRuns, DelegatedGraph


@dataclass(frozen=True)
class GraphDelegate:
    """Answers delegations with another compiled graph: an agent, or any graph whose state has `messages`.

    The graph gets the conversation's last messages and the task, and runs in a history of its own. Its model's tokens
    stay out of the delegating agent's stream; `Session.stream` yields them in `DelegatePart`s.
    """

    name: str
    """The name after `delegate_to_`."""
    description: str
    """Its purpose, for the model."""
    graph: CompiledStateGraph[Any, Any, Any, Any]
    background: bool = False
    """Whether the model may run tasks in the background, with `background=true`; only for an agent of this package."""

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
        """Whether it continues where it stopped: its supersteps are in the caller's checkpoints, or in its own.

        A graph compiled with `checkpointer=False` stores nothing, and is run once per call.
        """
        return self._delegated.resumes

    async def run(self, delegation: Delegation) -> DelegationResult:
        """Run the graph on the task and return its last message, or the approval request that it waits for."""
        if delegation.background and (started := await self._in_background.start(delegation)) is not None:
            return started
        return await self._delegated.run(delegation)

    async def resume(self, delegation: Delegation, task: RemoteTask, answer: Any) -> DelegationResult:
        """Continue a run that waits for an approval with a person's answer; it may wait again."""
        return await self._delegated.resume(delegation, task, answer)

    async def has_continued(self, task: RemoteTask) -> bool:
        """Whether an earlier attempt of the running call has continued the run after its question."""
        return await self._delegated.has_continued(task)

    async def withdraw(self, task: RemoteTask) -> None:
        """Do nothing: a waiting run holds no resources."""

    async def collect(self, id_: str, task: BackgroundTask) -> DelegationResult | None:
        """Behaves like `BackgroundDelegate.collect`."""
        return await self._in_background.collect(id_, task)

    async def wait(self, task: BackgroundTask) -> None:
        """Behaves like `BackgroundDelegate.wait`."""
        await self._in_background.wait(task)

    @property
    def _in_background(self) -> BackgroundRuns:
        from graph_agent.integrations.delegates.graph import BackgroundRuns  # as below

        return BackgroundRuns(self.name, self.graph)

    @property
    def _delegated(self) -> DelegatedGraph:
        # Imported here: see the module docstring.
        from graph_agent.integrations.delegates.graph import DelegatedGraph

        return DelegatedGraph(self.name, self.graph)
