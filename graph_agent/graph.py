"""Assembly: the four nodes, joined. `build_graph` takes objects that are ready; it resolves no names."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from types import MappingProxyType
from typing import Any, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool
from langgraph.cache.base import BaseCache
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import GraphBubbleUp
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command
from pydantic import SecretStr

from graph_agent._compat import (
    KEEPING_NOTHING,
    ClockedStateGraph,
    both_ways,
    checkpointer_of,
    inherits_durability,
    is_resuming,
)
from graph_agent.blocking import blocking, refuse_running_loop
from graph_agent.checkpoint_metadata import keep_configurable_out
from graph_agent.checkpoints import keep_ids_above_newest, namespaces_unseen
from graph_agent.config import LoopConfig
from graph_agent.context import AgentContext, with_credentials
from graph_agent.delegation import Delegate
from graph_agent.effects import note_untouched
from graph_agent.errors import ConfigError
from graph_agent.given_parts import checked_delegates, checked_hooks, checked_tools
from graph_agent.hook_list import sort_hooks, surround
from graph_agent.hooks import LoopHook
from graph_agent.models.pool import ModelPool, Resolve, ready_only
from graph_agent.nodes.delegate import delegate_node
from graph_agent.nodes.finalize import finalize_node
from graph_agent.nodes.plan import plan_node
from graph_agent.nodes.tools import tools_node
from graph_agent.parts import AgentParts
from graph_agent.prompts import Prompts
from graph_agent.reading import with_reader
from graph_agent.rollout import agentic_loop_from_env
from graph_agent.routing import PATHS, after_plan
from graph_agent.running import refuse_within, running, running_blocking
from graph_agent.runs import RUN, Run, run_of
from graph_agent.schema import ResponseSchema
from graph_agent.state import AgentInput, AgentOutput, AgentState, PlanState
from graph_agent.system_prompt import system_prompt_source
from graph_agent.toolbox import Toolbox
from graph_agent.types import Call
from graph_agent.wave_reply import PLAN_TOOL
from graph_agent.waves import PlanningResult

_MOST_THREADS = 256
DEFAULT_SYSTEM_PROMPT = "You are a helpful assistant."


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


def build_graph(
    model: BaseChatModel,
    *,
    tools: Sequence[BaseTool | Callable[..., Any]] = (),
    delegates: Sequence[Delegate] = (),
    hooks: Sequence[LoopHook | Any] = (),
    system_prompt: str | Callable[[], str] = DEFAULT_SYSTEM_PROMPT,
    prompts: Mapping[str, str] | None = None,
    response_format: type[Any] | dict[str, Any] | None = None,
    config: LoopConfig | None = None,
    context_schema: type[AgentContext] = AgentContext,
    plan_schema: type[PlanningResult] = PlanningResult,
    cache: BaseCache[Any] | None = None,
    warnings: Sequence[str] = (),
    resolve: Resolve = ready_only,
) -> AgentStateGraph:
    """Build an agent's graph from ready objects.

    Args:
        model: The chat model.
        tools: LangChain tools, or callables with a docstring and type hints.
        delegates: Agents to hand tasks to; each is offered as `delegate_to_<name>`.
        hooks: What may look at each planning reply and have the model asked again (`LoopHook`), in order; and
            `AgentMiddleware` of the `langchain` package, put around model requests and tool calls, outermost first.
        system_prompt: The system prompt, or a function that gives it at each request.
        prompts: Templates that replace shipped prompts, by name (see `graph_agent.prompts.VARIABLES`).
        response_format: Shape of the answer, as a pydantic class, a dataclass, a `TypedDict` class or a JSON schema.
            The state's `structured_response` is plain JSON.
        config: The loop's configuration; None for the defaults.
        context_schema: `AgentContext`, or a subclass with fields of your own.
        plan_schema: What a structured plan looks like: `PlanningResult`, or a subclass that gives `slots` a shape.
        cache: Where plans are kept for runs with a `plan_cache_ttl_s`; the cache that `compile()` takes is LangGraph's
            own, for nodes.
        warnings: What was not as it should be when the parts were made; told as `warning` events at each input.
        resolve: Gives the chat model for what `model` and `fallback_models` name, here and in a run's context; the
            default takes chat models only.

    Returns:
        The graph, not compiled: give it a checkpointer, a store and a cache with `compile()`.

    Raises:
        ConfigError: When the parts do not fit together.
    """
    if not (isinstance(plan_schema, type) and issubclass(plan_schema, PlanningResult)):
        raise ConfigError(f"plan_schema must be PlanningResult or a subclass of it, not {plan_schema!r}.")
    if not (isinstance(context_schema, type) and issubclass(context_schema, AgentContext)):
        raise ConfigError(f"context_schema must be AgentContext or a subclass of it, not {context_schema!r}.")
    if config is not None and not isinstance(config, LoopConfig):
        raise ConfigError(f"config must be a LoopConfig, not {config!r}; write LoopConfig(**values).")
    config = config or LoopConfig()
    if config.plan_cache_ttl_s is not None and cache is None:
        raise ConfigError("plan_cache_ttl_s is set and there is no cache; pass e.g. cache=InMemoryCache().")
    templates = Prompts(prompts)
    registered = sort_hooks(checked_hooks(hooks))
    own = with_reader(checked_tools(tools), config)
    toolbox = Toolbox(own, checked_delegates(delegates), templates, registered.offered)
    middleware = surround(registered.middleware, toolbox, templates)
    models = ModelPool(
        model,
        config=config,
        resolve=resolve,
        schemas=toolbox.schemas,
        plan_schema=plan_schema.model_json_schema(),
        plan_tool=PLAN_TOOL,
        around=middleware.around_model,
    )
    parts = AgentParts(
        models=models,
        client=models.first.client,
        toolbox=toolbox,
        prompts=templates,
        config=config,
        planner=models.first.planner,
        tool_calling=models.first.tool_calling,
        system_prompt=system_prompt_source(system_prompt),
        response=ResponseSchema(response_format) if response_format is not None else None,
        plan_schema=plan_schema,
        cache=cache,
        agentic_loop=agentic_loop_from_env(),
        context_schema=context_schema,
        warnings=tuple(warnings),
        hooks=registered.hooks,
        rewriters=registered.rewriters,
        around_tool=middleware.around_tool,
        whole_replies=middleware.whole_replies,
    )
    return _assemble(parts)


def _while_held(node: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A node whose update counts only while its process holds the session."""

    @functools.wraps(node)
    async def run(state: Any, config: RunnableConfig, *args: Any, **kwargs: Any) -> Any:
        run_of(config).check_held()
        update = await node(state, config, *args, **kwargs)
        run_of(config).check_held()
        return update

    return run


def _assemble(parts: AgentParts) -> AgentStateGraph:
    graph = AgentStateGraph(
        AgentState, context_schema=parts.context_schema, input_schema=AgentInput, output_schema=AgentOutput
    )
    graph.may_write, graph.writes = parts.toolbox.may_write, parts.toolbox.writes
    graph.offers = parts.toolbox.schemas
    graph.response = parts.response
    graph.model = parts.models.first.client.model
    graph.config = parts.config
    graph.tool_names = tuple(parts.toolbox.names)
    nodes: dict[str, tuple[Callable[..., Any], type[Any]]] = {
        "plan": (plan_node, PlanState),
        "tools": (tools_node, Call),
        "delegate": (delegate_node, Call),
        "finalize": (finalize_node, PlanState),
    }
    for node_name, (node, schema) in nodes.items():
        ready = _while_held(functools.wraps(node)(functools.partial(node, parts=parts)))
        # Only drawn: where `finalize` leads when planning goes on after an edit or after steering.
        leads_to = ("plan", END) if node_name == "finalize" else None
        graph.add_node(
            node_name, both_ways(blocking(ready), ready, node_name), input_schema=schema, destinations=leads_to
        )
    graph.add_edge(START, "plan")
    router = both_ways(blocking(after_plan), after_plan, "after_plan")
    graph.add_conditional_edges("plan", router, PATHS)
    graph.add_edge("tools", "plan")
    graph.add_edge("delegate", "plan")
    graph.add_edge("finalize", END)
    return graph
