"""What one agent is made of, ready to run: the nodes are given this and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakValueDictionary

from langchain_core.runnables import RunnableConfig
from langgraph.cache.base import BaseCache
from langgraph.runtime import Runtime

from graph_agent._internal.lru import Bounded
from graph_agent.budgets import BUDGET_LEFT, tightened
from graph_agent.config import LoopConfig, Planner
from graph_agent.context import AgentContext, coerce_context, effective_config
from graph_agent.hooks.protocol import LoopHook, sees_answers
from graph_agent.models.client import Mode, ModelClient
from graph_agent.models.pool import ModelPool
from graph_agent.models.structured import StructuredPlanner
from graph_agent.prompts import Prompts
from graph_agent.prompts.tools_in_text import tools_in_text
from graph_agent.response_format import ResponseSchema
from graph_agent.state.schema import Bookkeeping
from graph_agent.tools.output import Output
from graph_agent.tools.toolbox import Toolbox
from graph_agent.types import Call
from graph_agent.waves.schema import PlanningResult

AroundTool = Callable[[Call, RunnableConfig, Runtime[Any], Callable[[Call], Awaitable[Output]]], Awaitable[Output]]
"""Runs a call, with the task's config and runtime, by what it is given for running it."""


class Slots:
    """Bounds how many calls of one wave are in flight."""

    def __init__(self) -> None:
        # The tasks of a wave meet here by its checkpoint; a wave that nobody is in any more is forgotten.
        self._waves: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of_wave(self, runtime: Runtime[Any], limit: int) -> asyncio.Semaphore:
        """What a call of one wave holds while it runs.

        Args:
            runtime: The calling task's runtime; the tasks of one wave share its checkpoint id.
            limit: Calls in flight at most; the first caller's counts.
        """
        wave = runtime.execution_info.checkpoint_id if runtime.execution_info else ""
        return self._waves.setdefault(wave, asyncio.Semaphore(limit))


@dataclass(frozen=True)
class AgentParts:
    """One agent's parts, made once and shared by all its runs."""

    models: ModelPool
    """Every model this agent may use; `client`, `planner` and `tool_calling` are those of the one in force."""
    client: ModelClient
    planner: StructuredPlanner
    """Asks the model for structured plans, in wave mode."""
    toolbox: Toolbox
    prompts: Prompts
    config: LoopConfig
    tool_calling: Mode
    """The mode that suits the model."""
    system_prompt: Callable[[], str]
    """Gives the text of the system prompt; empty for none. Asked at each request, as it may name the day."""
    response: ResponseSchema | None = None
    plan_schema: type[PlanningResult] = PlanningResult
    """What a structured plan looks like; a subclass may give `slots` a shape."""
    cache: BaseCache[Any] | None = None
    """Where plans are kept, for runs with a `plan_cache_ttl_s`."""
    agentic_loop: bool | None = None
    """True or False when the operator has set one planner for every session; None when they have not."""
    context_schema: type[AgentContext] = AgentContext
    """What a run may bring; under a parent graph it arrives as the parent's own mapping."""
    warnings: tuple[str, ...] = ()
    """What was not as it should be when the agent was built, e.g. a server that is down; told at each input."""
    hooks: tuple[LoopHook, ...] = ()
    """What planning replies are shown to, in order."""
    rewriters: tuple[LoopHook, ...] = ()
    """The hooks that rewrite the tool results of requests, in order."""
    around_tool: AroundTool | None = None
    """What runs each tool call in its own way; None to run them directly."""
    whole_replies: bool = False
    """Whether something may rewrite a reply after its last token, so that none may be read before."""
    client_tool_choice: str | None = None
    """How the caller's own tools are to be chosen; None for as the model likes."""
    parallel_client_calls: bool = True
    """Whether several of the caller's own tools may be called at once."""
    slots: Slots = field(default_factory=Slots)
    variants: dict[str, AgentParts] = field(init=False, repr=False, default_factory=dict)
    """What runs with parts of their own were given (see `run_parts`)."""
    _offering: dict[ModelClient, ModelClient] = field(init=False, repr=False, default_factory=dict)
    _instructions: Bounded[tuple[Any, ...], str] = field(repr=False, default_factory=Bounded)

    def settings(self, runtime: Runtime[Any], config: RunnableConfig, loop: Bookkeeping) -> LoopConfig:
        """The configuration in force: the agent's own, under what the run brings, under what was changed since.

        Args:
            runtime: The node's runtime.
            config: The node's config, which holds the budget of a delegated run.
            loop: The state's bookkeeping.
        """
        own = effective_config(self.config, runtime.context, self.context_schema, loop.get("changed"))
        left = config["configurable"].get(BUDGET_LEFT)
        return tightened(own, left) if left else own

    def offering(self, client: ModelClient) -> ModelClient:
        """A client with all tools on offer: the caller's, and the delegates as they are known by now."""
        if not self.toolbox.client_tools and client.schemas == self.toolbox.schemas:
            return client
        if client not in self._offering:
            schemas = self.toolbox.schemas
            self._offering[client] = client.asked_with(schemas, {}, tool_choice=self.client_tool_choice)
        return self._offering[client]

    def without(self, names: Collection[str]) -> AgentParts:
        """The same agent offering some of its tools and delegates no more; itself where nothing would be left.

        Some providers refuse a history with calls in a request without tools.
        """
        if not names or set(self.toolbox.names) <= set(names):
            return self
        narrower = self.toolbox.without(names)
        return replace(self, client=self.client.without(names), toolbox=narrower, _instructions=Bounded())

    def mode(self, settings: LoopConfig) -> Mode:
        """How calls are asked for under a run's settings; as a structured plan where the operator wants no loop."""
        if self.agentic_loop is False:
            return "wave"
        return self.tool_calling if settings.tool_calling == "auto" else settings.tool_calling

    async def prepare(self) -> None:
        """Let the delegates learn what they are good for, and offer them to the model under what they say now."""
        if await self.toolbox.refresh():
            self.client.offer(self.toolbox.schemas)
            self._offering.clear()
            self._instructions.clear()

    def may_answer_while_planning(self, settings: LoopConfig) -> bool:
        """Whether a planning reply without calls may be the answer.

        An agent that plans with nothing to call, for its hooks, has nothing to gain from a second request.
        """
        return settings.finalize != "compose" or not self.toolbox

    def streams_while_planning(self, settings: LoopConfig) -> bool:
        """Whether planning replies are streamed as they come: they may be the answer, and nothing can replace them."""
        return self.may_answer_while_planning(settings) and not self.guarded

    @property
    def guarded(self) -> bool:
        """Whether something may rewrite an answer after its last token, so that nothing of it may be shown before."""
        return self.whole_replies or any(map(sees_answers, self.hooks))

    @property
    def plans(self) -> bool:
        """Whether there is anything to plan: calls to make, or hooks that want to see the reply."""
        return bool(self.toolbox) or bool(self.hooks)

    def instructions(self, settings: LoopConfig, mode: Mode, planner: Planner) -> str:
        """How the agent is told to work, beside its own system prompt.

        Args:
            settings: The run's configuration.
            mode: How calls are asked for.
            planner: Which planner the session has; counts in wave mode only.
        """
        style = planner if mode == "wave" else "calls" if settings.finalize == "compose" else settings.finalize
        answers = self.may_answer_while_planning(settings)
        key = (style, mode, settings.max_calls_per_wave, answers, tuple(self.toolbox.names))

        def make() -> str:
            schema = self.response.json_schema if self.response and answers else None
            most = settings.max_calls_per_wave
            sections = [self.prompts.render("planner", style=style, max_calls=most, answers=answers, schema=schema)]
            if mode != "native":
                sections.append(tools_in_text(self.prompts, self.toolbox.schemas, plan=mode == "wave"))
            return "\n\n".join(filter(None, sections))

        return self._instructions.get(key, make)


_MOST_KEPT = 64
_MOST_CHARS = 2_000_000
"""Characters of what runs brought that is kept for others that bring the same, the newest's aside."""


def parts_of_run(parts: AgentParts, runtime: Runtime[Any]) -> AgentParts:
    """The agent's parts with what a run brings; the agent's own where it brings nothing.

    Args:
        parts: The agent.
        runtime: The runtime of one of the run's nodes.

    Raises:
        ConfigError: When a caller's tool has the name of another, or the response schema is none.
    """
    context = coerce_context(runtime.context, parts.context_schema)
    if context is None:
        return parts
    tools = [context.client_tools, context.client_calls]
    if not (any(tools) or context.instructions or context.response_schema):
        return parts
    chosen = [context.client_tool_choice, context.parallel_client_calls]
    brought = [*tools, *chosen, context.instructions, context.response_schema]
    key = json.dumps(brought, sort_keys=True)
    if key not in parts.variants:
        _make_room(parts.variants, len(key))
        parts.variants[key] = _with(parts, context)
    return parts.variants[key]


def _make_room(kept: dict[str, AgentParts], chars: int) -> None:
    while kept and (len(kept) >= _MOST_KEPT or sum(map(len, kept)) + chars > _MOST_CHARS):
        kept.pop(next(iter(kept)))


def _with(parts: AgentParts, context: AgentContext) -> AgentParts:
    if context.client_tools or context.client_calls:
        toolbox = parts.toolbox.with_client_tools(context.client_tools, context.client_calls)
        # The instructions that are kept name the tools, where calls are asked for in text.
        parts = replace(
            parts,
            toolbox=toolbox,
            client_tool_choice=context.client_tool_choice,
            parallel_client_calls=context.parallel_client_calls,
            _instructions=Bounded(),
        )
        parts = replace(parts, client=parts.offering(parts.client)).without(toolbox.withdrawn)
    if context.instructions:
        # The instructions that are kept hold these, and go with them.
        parts = replace(parts, system_prompt=_below(parts.system_prompt, context.instructions), _instructions=Bounded())
    if context.response_schema is not None:
        parts = replace(parts, response=ResponseSchema(context.response_schema))
    return parts


def _below(own: Callable[[], str], added: str) -> Callable[[], str]:
    def both() -> str:
        prompt = own()
        return f"{prompt}\n\n{added}" if prompt else added

    return both
