"""The agent's graph, compiled and not: what surrounds its runs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import GraphBubbleUp
from langgraph.graph import StateGraph
from langgraph.types import Command
from pydantic import SecretStr

from graph_agent._compat import (
    KEEPING_NOTHING,
    ClockedStateGraph,
    checkpointer_of,
    inherits_durability,
    is_resuming,
)
from graph_agent._internal.sync_bridge import blocking, refuse_running_loop
from graph_agent.config import LoopConfig
from graph_agent.context import AgentContext, with_credentials
from graph_agent.execution.checkpoints import keep_ids_above_newest, namespaces_unseen
from graph_agent.runs.checkpoint_metadata import keep_configurable_out
from graph_agent.runs.registry import refuse_within, running, running_blocking
from graph_agent.runs.run import RUN, Run

if TYPE_CHECKING:
    from graph_agent.response_format import ResponseSchema

_MOST_THREADS = 256


class CompiledAgentGraph(ClockedStateGraph):
    """A compiled LangGraph graph with five differences.

    A session has one run at a time: a second one is refused, in this process and in others on the same database, where
    that is SQLite or PostgreSQL. `update_state` counts as a run. A run that has lost its session to another process is
    ended with `SessionLostError`.

    A new checkpoint is always the newest of its thread, also where the clocks of two processes differ.

    Where a call may write, its plan is in the checkpoint before it runs (`durability="sync"`, unless a run asks for
    another; as a subgraph too, in its parent's checkpoints), so that a crash can never hide that the call was made; an
    agent whose tools only read has nothing to hide, and keeps LangGraph's default. A blocking entry point says so when
    it would block a running loop. And of what a run's `configurable` holds, no checkpoint keeps more than where it is.
    """

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """As LangGraph's `stream`.

        Raises:
            RunFailedError: After the last part, where an input failed and `on_failure="raise"` is set.
            SyncInLoopError: In the thread of a running event loop.
            SessionBusyError: When a run of the session is under way.
            SessionLostError: When another process has taken the session over during the run.
        """
        refuse_running_loop("A blocking entry point (invoke, stream, batch)", "graph.ainvoke")
        return self._stream(input, config, kwargs)

    def _stream(self, input: Any, config: RunnableConfig | None, kwargs: dict[str, Any]) -> Iterator[Any]:
        configurable = self._configurable(config)
        kwargs = self._with_credentials(config, kwargs)
        with running_blocking(configurable, self.checkpointer, self.store) as run:
            run.fence.claims = _resumes(input, configurable)
            self._keep_ids_above(configurable)
            chunks = super().stream(
                input, _with_threads(self._with_run(config, run)), **self._durable(kwargs, configurable)
            )
            held: GraphBubbleUp | None = None
            try:
                with contextlib.closing(cast("Generator[Any]", chunks)):
                    yield from chunks
            except GraphBubbleUp as stopped:
                held = stopped
            if run.untouched:
                from graph_agent.execution.ledger import note_untouched  # rarely needed

                blocking(note_untouched)(run, {"configurable": configurable}, self.checkpointer)
            if held is not None:
                raise held
            if run.failure is not None:
                raise run.failure

    async def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        """As LangGraph's `astream`.

        Raises:
            RunFailedError: After the last part, where an input failed and `on_failure="raise"` is set.
            SessionBusyError: When a run of the session is under way.
            SessionLostError: When another process has taken the session over during the run.
        """
        configurable = self._configurable(config)
        kwargs = self._with_credentials(config, kwargs)
        async with running(configurable, self.checkpointer, self.store) as run:
            run.fence.claims = _resumes(input, configurable)
            await self._akeep_ids_above(configurable)
            chunks = super().astream(input, self._with_run(config, run), **self._durable(kwargs, configurable))
            held: GraphBubbleUp | None = None
            try:
                async with contextlib.aclosing(cast("AsyncGenerator[Any]", chunks)):
                    async for chunk in chunks:
                        yield chunk
            # Drained, or as a part of a parent graph at a breakpoint or with a question to a person.
            except GraphBubbleUp as stopped:
                held = stopped
            if run.untouched:
                from graph_agent.execution.ledger import note_untouched  # rarely needed

                await note_untouched(run, {"configurable": configurable}, self.checkpointer)
            if held is not None:
                raise held
            if run.failure is not None:
                raise run.failure

    def bulk_update_state(self, config: RunnableConfig, supersteps: Any) -> RunnableConfig:
        """As LangGraph's `bulk_update_state`, which `update_state` is made of.

        Raises:
            SessionBusyError: When a run of the session is under way.
        """
        configurable = self._configurable(config)
        refuse_within(str(configurable.get("thread_id", "")))
        with running_blocking(configurable, self.checkpointer, None) as run:
            run.updates_only = True
            self._keep_ids_above(configurable)
            return super().bulk_update_state(self._with_run(config, run), supersteps)

    async def abulk_update_state(self, config: RunnableConfig, supersteps: Any) -> RunnableConfig:
        """As `bulk_update_state`."""
        configurable = self._configurable(config)
        refuse_within(str(configurable.get("thread_id", "")))
        async with running(configurable, self.checkpointer, None) as run:
            run.updates_only = True
            await self._akeep_ids_above(configurable)
            return await super().abulk_update_state(self._with_run(config, run), supersteps)

    def _keep_ids_above(self, configurable: dict[str, Any]) -> None:
        if namespaces := namespaces_unseen(configurable):
            blocking(self._look_at)(configurable, namespaces)

    async def _akeep_ids_above(self, configurable: dict[str, Any]) -> None:
        if namespaces := namespaces_unseen(configurable):
            await self._look_at(configurable, namespaces)

    async def _look_at(self, configurable: dict[str, Any], namespaces: list[str]) -> None:
        # The saver around a run is the run's, whatever the graph was compiled with.
        saver = checkpointer_of({"configurable": configurable}) or self.checkpointer
        if self.checkpointer is not False and isinstance(saver, BaseCheckpointSaver):
            await keep_ids_above_newest(saver, str(configurable.get("thread_id", "")), namespaces)

    def _with_credentials(self, config: RunnableConfig | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        """A run's arguments with the agent's own credentials."""
        own = self.builder.credentials if isinstance(self.builder, AgentStateGraph) else None
        if not own:
            return kwargs
        schema = self.context_schema or AgentContext
        return {**kwargs, "context": with_credentials(kwargs.get("context"), own, config, schema)}

    def _configurable(self, config: RunnableConfig | None) -> dict[str, Any]:
        """What a run can be told of itself: the graph's own, what surrounds the run, and what it was given."""
        return {**ensure_config(self.config)["configurable"], **(config or {}).get("configurable", {})}

    def _with_run(self, config: RunnableConfig | None, run: Run) -> RunnableConfig:
        if isinstance(self.checkpointer, BaseCheckpointSaver):
            keep_configurable_out(self.checkpointer)
        nothing = KEEPING_NOTHING if self.checkpointer is False else {}
        configurable = {**(config or {}).get("configurable", {}), **nothing, RUN: run}
        return {**(config or {}), "configurable": configurable}

    def _durable(self, kwargs: dict[str, Any], configurable: dict[str, Any]) -> dict[str, Any]:
        if kwargs.get("durability") is not None or "checkpoint_during" in kwargs:
            return kwargs
        if not self.checkpointer and not self._keeps_with_its_parent(configurable):
            return kwargs
        if isinstance(self.builder, AgentStateGraph) and not self.builder.may_write:
            return kwargs
        return {**kwargs, "durability": "sync"}

    def _keeps_with_its_parent(self, configurable: dict[str, Any]) -> bool:
        """Whether it stores its steps with a surrounding run that leaves it open how."""
        if self.checkpointer is False or inherits_durability(configurable):
            return False
        return checkpointer_of({"configurable": configurable}) is not None


def _resumes(given: Any, configurable: dict[str, Any]) -> bool:
    """Whether a run goes on from the checkpoint that it loads, without one of its own first."""
    return given is None or isinstance(given, Command) or is_resuming({"configurable": configurable})


def _with_threads(config: RunnableConfig) -> RunnableConfig:
    """A blocking run's config with a thread for every call of a large wave.

    LangGraph takes `max_concurrency` for the size of its pool, and without one makes a pool of a few threads a core.
    How many calls are in flight is bounded by `max_parallel_calls`.
    """
    if ensure_config(config).get("max_concurrency") is not None:
        return config
    return {**config, "max_concurrency": _MOST_THREADS}


class AgentStateGraph(StateGraph[Any, Any, Any, Any]):
    """A `StateGraph` that compiles to a `CompiledAgentGraph`."""

    mcp_states: Callable[[], Awaitable[dict[str, bool]]] | None = None
    """Says of each MCP server behind the tools whether it can be called now; None where nobody knows."""
    tool_names: tuple[str, ...] = ()
    """Names of the tools and delegations there are."""
    model: BaseChatModel | None = None
    """The chat model that a run asks where it names no other."""
    credentials: Mapping[str, SecretStr] = MappingProxyType({})
    """Credentials that every run of the agent has, unless it brings others of these names."""
    may_write = True
    """Whether some call of this agent may change something outside it; False when every tool is marked as reading."""
    offers: Sequence[dict[str, Any]] = ()
    """What the agent can call, tools and delegates, in OpenAI's function format."""

    response: ResponseSchema | None = None
    """The shape of the answer; None for text."""
    config: LoopConfig | None = None
    """The agent's configuration."""
    writes: Callable[[str], bool] | None = None
    """Tells of a call's name whether it may change something; None where nobody can tell."""

    def compile(self, *args: Any, **kwargs: Any) -> CompiledAgentGraph:
        """As LangGraph's `compile`."""
        compiled = super().compile(*args, **kwargs)
        # LangGraph names the class it makes; ours adds methods and no attributes, so the object fits.
        compiled.__class__ = CompiledAgentGraph
        assert isinstance(compiled, CompiledAgentGraph)
        return compiled
