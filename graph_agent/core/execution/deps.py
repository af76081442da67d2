"""Holds the dependencies of the nodes: parts of one agent, those of one run, and the `Task` of one node.

Each node of the graph gets the agent's `AgentDeps`, and derives from them a `Task` with all that its functions need.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Self
from weakref import WeakValueDictionary

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.cache.base import BaseCache
from langgraph.runtime import Runtime

from graph_agent.base._internal import telemetry
from graph_agent.base._internal.failure_log import log_fields
from graph_agent.base._internal.lru import BoundedCache
from graph_agent.base.settings.config import AgentContext, LoopConfig, Planner, coerce_context, effective_config
from graph_agent.base.settings.response_format import ResponseSchema, client_schema
from graph_agent.base.types import Call, Usage
from graph_agent.base.usage import BUDGET_LEFT, STEPS_FOR_A_WAVE, BudgetUsage, cost_of, tighten_limits, work_s
from graph_agent.core.execution.prompt_versions import Versions, versions_of
from graph_agent.core.hooks.pipeline import MiddlewareNodes
from graph_agent.core.hooks.protocol import LoopHook, sees_answers
from graph_agent.core.runs.run import Run, run_of
from graph_agent.core.state.call_events import CallResult
from graph_agent.core.state.schema import INITIAL_LOOP, LoopState
from graph_agent.core.tools.memory import AgentMemory
from graph_agent.core.tools.toolbox import Toolbox
from graph_agent.core.waves.schema import PlanningResult
from graph_agent.models.client import Mode, ModelClient
from graph_agent.models.pool import ModelPool
from graph_agent.models.prompts import Prompts
from graph_agent.models.structured import StructuredPlanner
from graph_agent.models.system_prompt import PromptContent, joined_sections, tools_in_text

ToolCallWrapper = Callable[
    [Call, RunnableConfig, Runtime[Any], Callable[[Call, BaseTool | None], Awaitable[CallResult]]],
    Awaitable[CallResult],
]
"""Wraps the execution of a call: takes the call, the task's config and runtime, and the function that runs the call,
with a tool of middleware or None."""


class Slots:
    """Limits how many calls of one wave (the calls of one plan) run at once."""

    def __init__(self) -> None:
        # Shared by the tasks of a wave, by checkpoint id; an entry is dropped when no task refers to it.
        self._waves: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of_wave(self, runtime: Runtime[Any], limit: int) -> asyncio.Semaphore:
        """Return the semaphore that a call holds while it runs; all calls of one wave get the same.

        Args:
            runtime: The calling task's runtime; the tasks of one wave have the same checkpoint id.
            limit: Maximum of calls that run at once; the value of the wave's first call is used.
        """
        wave = runtime.execution_info.checkpoint_id if runtime.execution_info else ""
        return self._waves.setdefault(wave, asyncio.Semaphore(limit))


@dataclass(frozen=True)
class AgentDeps:
    """The parts of one agent, made once and shared by all its runs; `replace` makes variants with other parts."""

    models: ModelPool
    """Every model that this agent may use; `client`, `planner` and `tool_calling` belong to the configured one."""
    client: ModelClient
    """Sends requests to the model."""
    planner: StructuredPlanner
    """Requests structured plans, in wave mode."""
    toolbox: Toolbox
    """The tools and delegates that the model may call."""
    prompts: Prompts
    """Renders the package's own prompts, which an agent may replace."""
    config: LoopConfig
    """The agent's own configuration, before a run's context changes it."""
    tool_calling: Mode
    """How the model calls tools: `native` through the provider, `text` in the text, `wave` by a structured plan."""
    system_prompt: PromptContent | Callable[[], PromptContent]
    """The system prompt, or a function that returns it and is called at each request, as the text may contain the date.
    Empty if there is none."""
    system_text: str | None = None
    """The system prompt before its variables have values; None if a function of the program returns it."""
    response: ResponseSchema | None = None
    """Format of the structured response; None for an answer in free text."""
    plan_schema: type[PlanningResult] = PlanningResult
    """Schema of structured plans; a subclass may declare the type of `slots`."""
    cache: BaseCache[Any] | None = None
    """Cache of plans, for runs with a `plan_cache_ttl_s`; None if plans are not cached."""
    agentic_loop: bool | None = None
    """How `AGENTIC_LOOP_ENABLED` sets the planner of every session: True for `wave`, False for `dag`, None if unset."""
    context_schema: type[AgentContext] = AgentContext
    """Type of a run's context. Under a parent graph, the context may be the parent's own mapping."""
    memory: AgentMemory | None = None
    """Facts of users across sessions; None for an agent without a memory."""
    warnings: Callable[[], Sequence[str]] = tuple
    """Returns the agent's present problems, e.g. a server that is down; each input has a `warning` event for each."""
    hooks: tuple[LoopHook, ...] = ()
    """Loop hooks, which inspect replies of the model, in call order."""
    rewriters: tuple[LoopHook, ...] = ()
    """Loop hooks that rewrite the tool results of requests, in call order."""
    wrap_tool_call: ToolCallWrapper | None = None
    """Runs each tool call through the middleware; None to run calls directly."""
    runs_added_tools: bool = False
    """Whether middleware may add tools to requests and run their calls itself."""
    whole_replies: bool = False
    """Whether middleware may rewrite a reply after its last token, so that no token may be shown before it has."""
    hook_set: MiddlewareNodes | None = None
    """Hooks of middleware that are nodes of the graph; None if there are none."""
    client_tool_choice: str | None = None
    """The `tool_choice` of requests with client tools (the caller's own); None to leave the choice to the model."""
    parallel_client_calls: bool = True
    """Whether a plan may call several client tools at once."""
    slots: Slots = field(default_factory=Slots)
    """Limits the calls of a wave that run at once."""
    variants: dict[str, AgentDeps] = field(init=False, repr=False, default_factory=dict)
    """Dependencies of runs whose context changes them: the context as JSON → the dependencies (see `deps_of_run`)."""
    _clients: dict[ModelClient, ModelClient] = field(init=False, repr=False, default_factory=dict)
    """Client → the same client with the tools that this variant offers."""
    # Not copied by `replace`, so that a copy with other parts begins with an empty cache.
    _instructions: BoundedCache[tuple[Any, ...], str] = field(init=False, repr=False, default_factory=BoundedCache)

    def settings(self, runtime: Runtime[Any], config: RunnableConfig, loop: LoopState) -> LoopConfig:
        """Return the effective configuration: the agent's own, then the run's context, then later changes, which win.

        Args:
            runtime: The node's runtime, which has the run's context.
            config: The node's config; in a delegated run it holds the remaining budget, which tightens the limits.
            loop: The loop state, which has the session's changes.

        Raises:
            ConfigError: The context or a change is invalid.
        """
        changed, approve = loop.get("config_overrides"), loop.get("approve", ())
        own = self.config
        # Each node of each run comes through here.
        if runtime.context is not None or changed or approve:
            own = effective_config(own, runtime.context, self.context_schema, changed, approve)
        # A delegate must not spend more than the delegating session has left.
        remaining = config["configurable"].get(BUDGET_LEFT)
        return tighten_limits(own, remaining) if remaining else own

    def offering(self, client: ModelClient) -> ModelClient:
        """Return a client that offers the toolbox's present tools, client tools and delegates, and has the caller's
        tool choice.

        The given client is returned if it does so already; otherwise one changed copy for each client is kept.
        """
        if not self.toolbox.client_tools and client.schemas == self.toolbox.schemas:
            return client
        # A client with tools bound is costly to make, and each request asks for it.
        if client not in self._clients:
            schemas = self.toolbox.schemas
            self._clients[client] = client.with_overrides(schemas, {}, tool_choice=self.client_tool_choice)
        return self._clients[client]

    def without(self, names: Collection[str]) -> AgentDeps:
        """Return the dependencies without some tools and delegates; the same object if `names` is empty or no tool
        would remain.

        Some providers refuse a history with calls if the request has no tools.

        Args:
            names: Names of calls, `delegate_to_<name>` for a delegate.
        """
        if not names or set(self.toolbox.names) <= set(names):
            return self
        narrower = self.toolbox.without(names)
        return replace(self, client=self.client.without(names), toolbox=narrower)

    def mode(self, settings: LoopConfig) -> Mode:
        """Return the tool calling mode of a run: that of the settings, or with `auto` that of the model.

        It is `wave` whatever they are if the operator has disabled the agentic loop.
        """
        # The operator's variable wins over the agent's author.
        if self.agentic_loop is False:
            return "wave"
        return self.tool_calling if settings.tool_calling == "auto" else settings.tool_calling

    @property
    def steps_for_a_wave(self) -> int:
        """Number of supersteps that another plan, its wave and the answer need."""
        return STEPS_FOR_A_WAVE + (self.hook_set.supersteps if self.hook_set else 0)

    def caches_plans(self, settings: LoopConfig) -> bool:
        """Whether plans of a run with these settings are kept in the agent's cache."""
        return self.cache is not None and settings.plan_cache_ttl_s is not None

    async def prepare(self) -> None:
        """Load descriptions of delegates and changed tools, and offer them to the model; waits a few seconds at most.

        Raises `ConfigError` if a new tool cannot be offered.
        """
        if await self.toolbox.refresh():
            self.client.offer(self.toolbox.schemas)
            self._clients.clear()
            self._instructions.clear()
            self.__dict__.pop("versions", None)

    @cached_property
    def versions(self) -> Versions:
        """The versions of the prompts and of the offered tools."""
        return versions_of(self.system_text, self.prompts, self.toolbox.schemas)

    def may_answer_while_planning(self, settings: LoopConfig) -> bool:
        """Whether a planning reply without calls may be the answer: unless `finalize` is `compose`, or if there are no
        tools.

        An agent without tools plans for its hooks only, and gains nothing from a second request.
        """
        return settings.finalize != "compose" or not self.toolbox.names

    def streams_while_planning(self, settings: LoopConfig) -> bool:
        """Whether planning replies are streamed as produced: they may be the answer, and no guard (middleware or hook
        that may rewrite it) must process the whole first."""
        return self.may_answer_while_planning(settings) and not self.withholds(settings)

    @property
    def guarded(self) -> bool:
        """Whether middleware or a hook may rewrite an answer after its last token."""
        return self.whole_replies or any(map(sees_answers, self.hooks))

    def withholds(self, settings: LoopConfig) -> bool:
        """Whether no token of an answer may be shown before middleware and hooks have processed the whole.

        False with `stream_before_guards`, and if no middleware or hook may rewrite an answer.
        """
        return self.guarded and not settings.stream_before_guards

    @property
    def plans(self) -> bool:
        """Whether the agent plans before it answers: it has tools, delegates or hooks, or middleware may add tools."""
        return bool(self.toolbox.names or self.hooks) or self.runs_added_tools

    def prompt(self, added: str) -> PromptContent:
        """Return the system prompt of a request: the agent's own, followed by another text in a paragraph of its
        own."""
        own = self.system_prompt
        if isinstance(own, str):
            return f"{own}\n\n{added}" if own and added else own or added
        return joined_sections([own() if callable(own) else own, added])

    def instructions(self, settings: LoopConfig, mode: Mode, planner: Planner) -> str:
        """Return the package's instructions for planning, which follow the agent's own system prompt; cached.

        Args:
            settings: The configuration of the run.
            mode: The tool calling mode; except in `native`, the instructions describe the tools.
            planner: How the session plans; used in mode `wave` only.
        """
        style = planner if mode == "wave" else "calls" if settings.finalize == "compose" else settings.finalize
        answers = self.may_answer_while_planning(settings)
        key = (style, mode, settings.max_calls_per_wave, answers, tuple(self.toolbox.names))

        def make() -> str:
            schema = self.response.json_schema if self.response and answers else None
            most, text = settings.max_calls_per_wave, mode == "text"
            sections = [
                self.prompts.render("planner", style=style, max_calls=most, answers=answers, schema=schema, text=text)
            ]
            if mode != "native":
                sections.append(tools_in_text(self.prompts, self.toolbox.schemas, plan=mode == "wave"))
            return "\n\n".join(filter(None, sections))

        return self._instructions.get(key, make)


_MAX_VARIANTS = 64
"""Maximum entries of `AgentDeps.variants`; the oldest is dropped first."""
_MAX_VARIANT_CHARS = 2_000_000
"""Maximum characters of all keys in `AgentDeps.variants`; a single larger one is kept."""


def deps_of_run(deps: AgentDeps, runtime: Runtime[Any]) -> AgentDeps:
    """Return the agent's dependencies with the tools, instructions and response schema of a run's context.

    Without any of these in the context, the agent's own dependencies are returned. Equal contexts share one object.

    Args:
        deps: The agent's dependencies.
        runtime: The runtime of one of the run's nodes.

    Raises:
        ConfigError: A client tool has the name of another tool, or the response schema is invalid.
    """
    if runtime.context is None or (context := coerce_context(runtime.context, deps.context_schema)) is None:
        return deps
    tools = [context.client_tools, context.client_calls]
    if not (any(tools) or context.instructions or context.response_schema):
        return deps
    choice = [context.client_tool_choice, context.parallel_client_calls]
    # A run with the same context must not build its tools and schemas again.
    key = json.dumps([*tools, *choice, context.instructions, context.response_schema], sort_keys=True)
    if key not in deps.variants:
        _make_room(deps.variants, len(key))
        deps.variants[key] = _variant(deps, context)
    return deps.variants[key]


def _make_room(variants: dict[str, AgentDeps], chars: int) -> None:
    """Drop the oldest entries until one with a key of `chars` characters fits."""
    while variants and (len(variants) >= _MAX_VARIANTS or sum(map(len, variants)) + chars > _MAX_VARIANT_CHARS):
        variants.pop(next(iter(variants)))


def _variant(deps: AgentDeps, context: AgentContext) -> AgentDeps:
    """Return the dependencies with the parts of a context; raise `ConfigError` if these are invalid."""
    if context.client_tools or context.client_calls:
        toolbox = deps.toolbox.with_client_tools(context.client_tools, context.client_calls)
        deps = replace(
            deps,
            toolbox=toolbox,
            client_tool_choice=context.client_tool_choice,
            parallel_client_calls=context.parallel_client_calls,
        )
        deps = replace(deps, client=deps.offering(deps.client)).without(toolbox.withdrawn)
    if context.instructions:
        prompt = partial(deps.prompt, context.instructions)
        deps = replace(deps, system_prompt=prompt if callable(deps.system_prompt) else prompt())
    if context.response_schema is not None:
        deps = replace(deps, response=client_schema(json.dumps(context.response_schema)))
    return deps


@dataclass(frozen=True, slots=True)
class Task:
    """One execution of a node: what the node's functions work with, derived once."""

    config: RunnableConfig
    """The config that LangGraph passed to the node."""
    runtime: Runtime[Any]
    """The runtime that LangGraph passed to the node."""
    deps: AgentDeps
    """The agent, with the tools, instructions and response schema of the run's context."""
    run: Run
    """The run that the node belongs to."""
    state: Mapping[str, Any]
    """The state that the node reads; for a call, the fields that its node needs."""
    loop: LoopState
    """The loop state at the start of the task."""
    settings: LoopConfig
    """The effective configuration of the run at the start of the task."""

    @classmethod
    def of(cls, state: Mapping[str, Any], config: RunnableConfig, runtime: Runtime[Any], deps: AgentDeps) -> Self:
        """Return the task of a node from the arguments that LangGraph passed to it.

        Sets the session, input and step in the fields of log records.

        Raises:
            ConfigError: The run's context is invalid; see `deps_of_run`.
        """
        deps, loop, run = deps_of_run(deps, runtime), state.get("loop", INITIAL_LOOP), run_of(config)
        if telemetry.observer is not None:
            telemetry.observer.enter(run)
        # A node runs in a context of its own.
        log_fields.set({"session_id": run.identity.session_id, "input_id": loop["last_input_id"], "step": loop["step"]})
        return cls(config, runtime, deps, run, state, loop, deps.settings(runtime, config, loop))

    @property
    def step(self) -> int:
        """Number of the newest plan at the start of the task; 0 before the first plan."""
        return self.loop["step"]

    @property
    def id(self) -> str:
        """LangGraph's id of the task; empty outside a graph."""
        return self.runtime.execution_info.task_id if self.runtime.execution_info else ""

    @property
    def wave(self) -> str:
        """Id of the checkpoint that the task runs from, the same for all tasks of a wave; empty outside a graph."""
        return self.runtime.execution_info.checkpoint_id if self.runtime.execution_info else ""

    @property
    def records(self) -> bool:
        """Whether the effect ledger records each call that may write, before the call runs."""
        return self.loop.get("ledger", False)

    def settings_with(self, loop: LoopState) -> LoopConfig:
        """Return the effective configuration with the changes in another loop state: `config_overrides` and
        `approve`."""
        return self.deps.settings(self.runtime, self.config, loop)


def spent(run: Run, loop: LoopState, usage: Usage, history: Sequence[AnyMessage], settings: LoopConfig) -> BudgetUsage:
    """Return the usage of the input so far: seconds, tokens, cost, and those of the newest model call as an estimate.

    Args:
        run: The run, which measures the working time.
        loop: The loop state, which has the working time of earlier runs of the input.
        usage: Tokens and model calls of the input.
        history: The conversation; its newest reply is the estimate for the next model call.
        settings: The configuration of the run, which has the prices.
    """
    # The first model call of an input has no estimate: the calls of earlier inputs predict it badly.
    last = _newest_reply(history) if usage["model_calls"] else None
    used = last.usage_metadata if last is not None else None
    return BudgetUsage(
        seconds=run.stop.worked_s(loop.get("worked_s", 0.0)),
        tokens=usage["total_tokens"],
        cost=usage.get("cost", 0.0),
        last_tokens=used["total_tokens"] if used else 0,
        last_cost=cost_of(last, settings.prices) if last is not None else 0.0,
    )


def _newest_reply(history: Sequence[AnyMessage]) -> AIMessage | None:
    """Return the model's newest message; None if there is none."""
    return next((message for message in reversed(history) if isinstance(message, AIMessage)), None)


def work_left_s(run: Run, loop: LoopState, settings: LoopConfig) -> float | None:
    """Return the seconds, at least 0.0, that planning and calls may still take; None without a deadline.

    A part of the input's time is kept back for the answer.
    """
    if settings.deadline_s is None:
        return None
    return max(0.0, work_s(settings.deadline_s, settings) - run.stop.worked_s(loop.get("worked_s", 0.0)))


def answer_left_s(run: Run, loop: LoopState, settings: LoopConfig) -> float | None:
    """Return the seconds, at least 0.0, that remain until the input's deadline; None without a deadline."""
    if settings.deadline_s is None:
        return None
    return max(0.0, settings.deadline_s - run.stop.worked_s(loop.get("worked_s", 0.0)))
