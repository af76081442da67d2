"""Holds the dependencies of the nodes: parts of one agent, those of one run, and the `Task` of one node.

Each node of the graph gets the agent's `AgentDeps`, and derives from them a `Task` with all that its functions need.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakValueDictionary

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.cache.base import BaseCache
from langgraph.runtime import Runtime

from graph_agent.base._internal import telemetry
from graph_agent.base._internal.failure_log import log_fields
from graph_agent.base._internal.lru import BoundedCache
from graph_agent.base.history.call_events import CallResult
from graph_agent.base.settings.config import AgentContext, LoopConfig, Planner, coerce_context, effective_config
from graph_agent.base.settings.response_format import ResponseSchema, client_schema
from graph_agent.base.types import Call, Usage
from graph_agent.base.usage import BUDGET_LEFT, STEPS_FOR_A_WAVE, BudgetUsage, cost_of, tighten_limits, work_s
from graph_agent.base.waves.schema import PlanningResult
from graph_agent.core.execution.overlap.call_table import CallTable
from graph_agent.core.execution.prompt_versions import Versions, versions_of
from graph_agent.core.extensions.hook_pipeline import MiddlewareNodes
from graph_agent.core.extensions.hook_protocol import LoopHook, sees_answers
from graph_agent.core.extensions.memory import AgentMemory
from graph_agent.core.extensions.toolbox import Toolbox
from graph_agent.core.state.run import Run, run_of
from graph_agent.core.state.schema import INITIAL_LOOP, LoopState
from graph_agent.models.client import Mode, ModelClient
from graph_agent.models.pool import ModelPool
from graph_agent.models.prompts import Prompts
from graph_agent.models.structured import StructuredPlanner
from graph_agent.models.system_prompt import PromptContent, joined_sections, tools_in_text

if TYPE_CHECKING:
    from graph_agent.core.execution.overlap.past_inputs import PastInputs

ToolCallWrapper = Callable[
    [Call, RunnableConfig, Runtime[Any], Callable[[Call, BaseTool | None], Awaitable[CallResult]]],
    Awaitable[CallResult],
]
"""Wraps the execution of a call by middleware.

It receives the call, the task's config and runtime, and a function that runs a call. That function takes the call to
run, and a tool that middleware provides for it or None.
"""


_NO_LIMIT = nullcontext()


class Slots:
    """Limits how many calls of one wave (the parallel calls of one plan) run at once."""

    def __init__(self) -> None:
        # Shared by the tasks of a wave, by checkpoint id; an entry is dropped when no task refers to it.
        self._waves: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, task: Task, limit: int) -> AbstractAsyncContextManager[None]:
        """Return the context manager within which a call runs: the semaphore that all calls of its wave share.

        A wave of at most `limit` calls needs none, so that each of its calls may run at once.

        Args:
            task: The call's task, whose state has the calls of the wave.
            limit: Maximum of calls that run at once. Only the value of the wave's first call is used.
        """
        if "ready" in task.state and len(task.state["ready"]) <= limit:
            return _NO_LIMIT
        return self._waves.setdefault(task.wave, asyncio.Semaphore(limit))


@dataclass(frozen=True)
class AgentDeps:
    """The parts of one agent, made once and shared by all its runs.

    Immutable; `dataclasses.replace` makes a copy with other parts and empty caches.
    """

    models: ModelPool
    """Every model that this agent may use. `client`, `planner` and `tool_calling` are those of the configured model."""
    client: ModelClient
    """Sends requests to the configured model, with the tools offered."""
    planner: StructuredPlanner
    """Requests structured plans (JSON objects that describe a whole wave of calls), in mode `wave`."""
    toolbox: Toolbox
    """The tools and delegates that the model may call."""
    prompts: Prompts
    """Renders the package's own prompts, which an agent may replace."""
    config: LoopConfig
    """The agent's own configuration, before a run's context changes it."""
    tool_calling: Mode
    """How the configured model calls tools, used where the settings have `auto`.

    `native`: through the provider's tool calls. `text`: written in the reply's text. `wave`: by a structured plan.
    """
    system_prompt: PromptContent | Callable[[], PromptContent]
    """The agent's system prompt, or a function that returns it. Empty if there is none.

    The function is called for each request, because the text may contain the date.
    """
    system_text: str | None = None
    """The system prompt as a template, before its variables are filled in.

    None if a function of the program returns it.
    """
    response: ResponseSchema | None = None
    """Format of the structured response (the agent's `response_format`); None for an answer in free text."""
    plan_schema: type[PlanningResult] = PlanningResult
    """Schema of structured plans; a subclass may declare the type of `slots`."""
    cache: BaseCache[Any] | None = None
    """Cache in which plans are stored, for runs whose settings have a `plan_cache_ttl_s`.

    None if plans are not cached.
    """
    agentic_loop: bool | None = None
    """How the environment variable `AGENTIC_LOOP_ENABLED` sets the planner of every session; None if it is unset.

    True for planner `wave`, which may plan again after each wave. False for planner `dag`, which makes one plan.
    """
    context_schema: type[AgentContext] = AgentContext
    """Type of a run's context. Under a parent graph, the context may be the parent's own mapping."""
    memory: AgentMemory | None = None
    """Facts of users across sessions; None for an agent without a memory."""
    warnings: Callable[[], Sequence[str]] = tuple
    """Returns the agent's present problems, e.g. a server that is down; each input has a `warning` event for each."""
    hooks: tuple[LoopHook, ...] = ()
    """Loop hooks, which inspect replies of the model, in call order."""
    rewriters: tuple[LoopHook, ...] = ()
    """Those loop hooks that rewrite the tool results which a request shows to the model, in call order."""
    wrap_tool_call: ToolCallWrapper | None = None
    """Runs each tool call through the agent's middleware; None if no middleware wraps calls."""
    runs_added_tools: bool = False
    """Whether middleware may add tools to requests and run their calls itself."""
    whole_replies: bool = False
    """Whether middleware may change a reply after its last token, so that no token may be streamed before middleware
    ran."""
    hook_set: MiddlewareNodes | None = None
    """Middleware hooks that run as nodes of the graph, such as `before_model`; None if there are none."""
    client_tool_choice: str | None = None
    """The provider's `tool_choice` for requests with client tools (tools that the program which started the run
    executes).

    None to leave the choice to the model.
    """
    parallel_client_calls: bool = True
    """Whether a plan may call several client tools at once."""
    slots: Slots = field(default_factory=Slots)
    """Limits the calls of a wave that run at once."""
    calls_that_followed: CallTable = field(default_factory=CallTable)
    """Which calls followed which in the inputs of the agent, for `predict`; shared by all variants."""
    past_inputs: PastInputs | None = None
    """The inputs of stored sessions, which `calls_that_followed` counts once; None without `predict`."""
    variants: dict[str, AgentDeps] = field(init=False, repr=False, default_factory=dict)
    """Cache of the dependencies for runs whose context changes them: relevant parts of the context as JSON →
    dependencies."""
    _clients: dict[ModelClient, ModelClient] = field(init=False, repr=False, default_factory=dict)
    """Cache of `offering`: client → the same client with the tools of this variant."""
    # Not copied by `replace`, so that a copy with other parts begins with an empty cache.
    _instructions: BoundedCache[tuple[Any, ...], str] = field(init=False, repr=False, default_factory=BoundedCache)
    """Cache of `instructions`."""

    def settings(self, runtime: Runtime[Any], config: RunnableConfig, loop: LoopState) -> LoopConfig:
        """Return the effective configuration: the agent's own, overridden by the run's context, then by changes in the
        session.

        In a delegated run, the budget that the delegating session has left tightens the limits. If nothing changes it,
        the agent's own object is returned.

        Args:
            runtime: The node's runtime, which has the run's context.
            config: The node's config, which has the remaining budget of a delegated run.
            loop: The loop state, which has the session's changes (`config_overrides`, `approve`).

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
        """Return a client that offers the toolbox's present tools, client tools and delegates, with the run's tool
        choice.

        The given client itself is returned if it already offers them. Otherwise a changed copy is made once and cached.
        """
        own = client.schemas is self.toolbox.schemas or client.schemas == self.toolbox.schemas
        if own and not self.toolbox.client_tools:
            return client
        # A client with tools bound is costly to make, and each request asks for it.
        if client not in self._clients:
            schemas = self.toolbox.schemas
            self._clients[client] = client.with_overrides(schemas, {}, tool_choice=self.client_tool_choice)
        return self._clients[client]

    def without(self, names: Collection[str]) -> AgentDeps:
        """Return a copy of the dependencies that lacks some tools and delegates.

        The same object is returned if `names` is empty or contains every tool: some providers refuse a history with
        calls if the request offers no tools.

        Args:
            names: Names of calls: tool names, or `delegate_to_<name>` for a delegate.
        """
        if not names or set(self.toolbox.names) <= set(names):
            return self
        narrower = self.toolbox.without(names)
        return replace(self, client=self.client.without(names), toolbox=narrower)

    def mode(self, settings: LoopConfig) -> Mode:
        """Return how the model calls tools in a run: the settings' `tool_calling`, or the model's own mode if that is
        `auto`.

        Always `wave` if the operator has disabled the agentic loop (`agentic_loop` is False).
        """
        # The operator's variable wins over the agent's author.
        if self.agentic_loop is False:
            return "wave"
        return self.tool_calling if settings.tool_calling == "auto" else settings.tool_calling

    @cached_property
    def steps_for_a_wave(self) -> int:
        """Number of LangGraph supersteps that one more plan, its wave and the answer need, nodes of middleware hooks
        included."""
        return STEPS_FOR_A_WAVE + (self.hook_set.supersteps if self.hook_set else 0)

    def caches_plans(self, settings: LoopConfig) -> bool:
        """Whether plans of a run with these settings are stored in the agent's cache: there is a cache and a time to
        live."""
        return self.cache is not None and settings.plan_cache_ttl_s is not None

    async def prepare(self) -> None:
        """Load descriptions of delegates and changed tools, and offer them to the model. Waits a few seconds at most.

        If something changed, the caches of clients, instructions and versions are cleared.

        Raises:
            ConfigError: A new tool cannot be offered.
        """
        if await self.toolbox.refresh():
            self.client.offer(self.toolbox.schemas)
            self._clients.clear()
            self._instructions.clear()
            self.__dict__.pop("versions", None)

    @cached_property
    def versions(self) -> Versions:
        """Hashes of the prompts and of the offered tools; cached until `prepare` finds a change."""
        return versions_of(self.system_text, self.prompts, self.toolbox.schemas)

    def may_answer_while_planning(self, settings: LoopConfig) -> bool:
        """Whether a planning reply without calls may be the final answer, so that no separate request for the answer is
        sent.

        True unless `finalize` is `compose`. Always True for an agent without tools, which plans for its hooks only and
        gains nothing from a second request.
        """
        return settings.finalize != "compose" or not self.toolbox.names

    def streams_while_planning(self, settings: LoopConfig) -> bool:
        """Whether tokens of planning replies are streamed as the model produces them.

        They are if the reply may be the answer, and no middleware or hook must process the whole reply first
        (`withholds`).
        """
        return self.may_answer_while_planning(settings) and not self.withholds(settings)

    @cached_property
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
        """Return the system prompt of a request: the agent's own prompt, then `added` as a separate paragraph.

        Calls the function that returns the agent's prompt, if it is one. An empty part is left out.
        """
        own = self.system_prompt
        if isinstance(own, str):
            return f"{own}\n\n{added}" if own and added else own or added
        return joined_sections([own() if callable(own) else own, added])

    def instructions(self, settings: LoopConfig, mode: Mode, planner: Planner) -> str:
        """Return the package's instructions for planning, which follow the agent's own system prompt.

        If the reply may be the answer and the agent has a response schema, that schema is included. The text is cached.

        Args:
            settings: The configuration of the run.
            mode: The tool calling mode. In every mode but `native`, the instructions also describe the tools.
            planner: Whether the session may plan repeatedly (`wave`) or once (`dag`); used in mode `wave` only.
        """
        style = planner if mode == "wave" else "calls" if settings.finalize == "compose" else settings.finalize
        answers = self.may_answer_while_planning(settings)
        key = (style, mode, settings.max_calls_per_wave, settings.dispatch, answers, tuple(self.toolbox.names))

        def make() -> str:
            schema = self.response.json_schema if self.response and answers else None
            most, text = settings.max_calls_per_wave, mode == "text"
            sections = [
                self.prompts.render(
                    "planner",
                    style=style,
                    max_calls=most,
                    answers=answers,
                    schema=schema,
                    text=text,
                    calls_first=settings.dispatch == "streamed",
                )
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
    """Return the agent's dependencies with the client tools, instructions and response schema that a run's context
    adds.

    If the context adds none of these, `deps` itself is returned. Runs with equal additions share one object, cached in
    `deps.variants`; the oldest are dropped from a full cache.

    Args:
        deps: The agent's dependencies.
        runtime: The runtime of one of the run's nodes, which has the context.

    Raises:
        ConfigError: The context is invalid, a client tool has the name of another tool, or the response schema is
            invalid.
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
    """Drop the oldest entries until one with a key of `chars` characters fits the bounds of number and total
    characters.

    Args:
        variants: Key → cached dependencies, oldest first; changed in place.
        chars: Characters of the key to be added.
    """
    while variants and (len(variants) >= _MAX_VARIANTS or sum(map(len, variants)) + chars > _MAX_VARIANT_CHARS):
        variants.pop(next(iter(variants)))


def _variant(deps: AgentDeps, context: AgentContext) -> AgentDeps:
    """Return a copy of the dependencies with a context's client tools, instructions and response schema.

    Instructions follow the agent's own prompt, whether that is a text or a function; the context's response schema
    replaces the agent's. Client tools of earlier calls that the context lacks are removed, unless the agent has no
    other tools.

    Raises:
        ConfigError: A client tool has the name of another tool, or the response schema is invalid.
    """
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
    """One execution of a graph node, with everything that the node's functions use, derived once from LangGraph's
    arguments."""

    config: RunnableConfig
    """The config that LangGraph passed to the node."""
    runtime: Runtime[Any]
    """The runtime that LangGraph passed to the node."""
    deps: AgentDeps
    """The agent's parts, with the tools, instructions and response schema of the run's context."""
    run: Run
    """The run (one execution of the graph) that the node belongs to."""
    state: Mapping[str, Any]
    """The state that the node reads. The task of a call has only the fields that such a node needs."""
    loop: LoopState
    """The loop state (the state field `loop`: counters and settings of the session) at the start of the task."""
    settings: LoopConfig
    """The effective configuration of the run at the start of the task."""

    @classmethod
    def of(cls, state: Mapping[str, Any], config: RunnableConfig, runtime: Runtime[Any], deps: AgentDeps) -> Self:
        """Return the task of a node from the arguments that LangGraph passed to the node.

        Also sets the session, input and step in the fields of log records, and notifies the telemetry observer if there
        is one.

        Raises:
            ConfigError: The run's context or a stored change of the configuration is invalid.
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
        """Id of the checkpoint that the task runs from.

        All tasks of a wave have the same one. Empty outside a graph.
        """
        return self.runtime.execution_info.checkpoint_id if self.runtime.execution_info else ""

    @property
    def records(self) -> bool:
        """Whether the effect ledger is on: it stores a note of each call that may write before the call runs."""
        return self.loop.get("ledger", False)

    def settings_with(self, loop: LoopState) -> LoopConfig:
        """Return the effective configuration as it is with another loop state, whose `config_overrides` and `approve`
        apply."""
        return self.deps.settings(self.runtime, self.config, loop)


def spent(run: Run, loop: LoopState, usage: Usage, history: Sequence[AnyMessage], settings: LoopConfig) -> BudgetUsage:
    """Return how much of its budget the input has used, with the newest model call as an estimate of the next one.

    The estimate of tokens and cost is 0 before the first model call of the input, and without a reply in the history.

    Args:
        run: The run, which measures the working time.
        loop: The loop state, which has the working time of earlier runs of the same input.
        usage: Tokens, cost and model calls of the input so far.
        history: The conversation; the newest reply of the model is the estimate.
        settings: The configuration of the run, which has the prices.
    """
    # The first model call of an input has no estimate: the calls of earlier inputs predict it badly.
    replies = (message for message in reversed(history) if isinstance(message, AIMessage))
    last = next(replies, None) if usage["model_calls"] else None
    used = last.usage_metadata if last is not None else None
    return BudgetUsage(
        seconds=run.stop.worked_s(loop.get("worked_s", 0.0)),
        tokens=usage["total_tokens"],
        cost=usage.get("cost", 0.0),
        last_tokens=used["total_tokens"] if used else 0,
        last_cost=cost_of(last, settings.prices) if last is not None else 0.0,
    )


def work_left_s(run: Run, loop: LoopState, settings: LoopConfig) -> float | None:
    """Return the seconds, at least 0.0, that planning and calls may still take; None if the settings have no deadline.

    Less than `answer_left_s`, because a part of the input's time is reserved for the answer.
    """
    if settings.deadline_s is None:
        return None
    return max(0.0, work_s(settings.deadline_s, settings) - run.stop.worked_s(loop.get("worked_s", 0.0)))


def answer_left_s(run: Run, loop: LoopState, settings: LoopConfig) -> float | None:
    """Return the seconds, at least 0.0, that remain until the input's deadline.

    None if the settings have no deadline.
    """
    if settings.deadline_s is None:
        return None
    return max(0.0, settings.deadline_s - run.stop.worked_s(loop.get("worked_s", 0.0)))
