"""Implements `create_graph_agent`: resolves names to objects, then builds and compiles the graph.

A delegate is another agent that receives tasks. A hook is user code between a model's reply and its effect.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Never, TypeAlias, overload

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import SystemMessage
from langgraph.cache.base import BaseCache
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore
from typing_extensions import TypedDict, TypeVar, Unpack

from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base._internal.garbage import paused_collection
from graph_agent.base.errors import ConfigError, did_you_mean
from graph_agent.base.settings.config import AgentContext, LoopConfig
from graph_agent.core.extensions.hook_protocol import LoopHook, Middleware

if TYPE_CHECKING:
    from types import UnionType

    from langchain_core.tools import BaseTool
    from langgraph.types import All

    from graph_agent.base.settings.response_format import ResponseStrategy
    from graph_agent.base.waves.schema import PlanningResult
    from graph_agent.core.extensions.delegation import Delegate
    from graph_agent.core.extensions.memory import AgentMemory
    from graph_agent.models.pool import Resolve
    from graph_agent.session.compile_options import CompileOptions
    from graph_agent.session.graph_agent import GraphAgent, GraphAgentBuilder


SystemPrompt: TypeAlias = (
    str | SystemMessage | Callable[[], str | SystemMessage] | Callable[[dict[str, Any]], str | SystemMessage]
)
"""The system prompt as text or as a message, or a function that returns it; the function has no parameter, or receives
the state.
"""
logger = get_logger("graph_agent.session.agent")

_MOVED = {
    "prompt": "system_prompt, with text, a SystemMessage, or a function of the state that returns one",
    "state_modifier": "system_prompt, with text, a SystemMessage, or a function of the state that returns one",
    "instructions": "system_prompt, or `instructions` in a run's context",
    "pre_model_hook": "hooks, with a middleware that has before_model or wrap_model_call",
    "post_model_hook": "hooks, with a middleware that has after_model, or a LoopHook",
    "config_schema": "context_schema",
    "version": "nothing: each call is a task of its own",
    "llm": "model",
    "max_iterations": "config=LoopConfig(max_steps=…)",
    "recursion_limit": "config=LoopConfig(max_steps=…), or `recursion_limit` in a run's config",
    "output_type": "response_format",
    "output_schema": "response_format",
    "agents": "delegates",
    "subagents": "delegates",
    "interrupt_on": "config=LoopConfig(approve=[…]), with the names of the tools",
}
"""Argument of other agent constructors → what to use here."""


def refuse_unknown_arguments(name: str, constructor: Callable[..., Any], given: Iterable[str]) -> None:
    """Raise `TypeError` for the first of `given`; return if `given` is empty.

    The message names the replacement: `config=LoopConfig(…)` for a field of `LoopConfig`, the new place of an argument
    that has moved, otherwise the known argument with the most similar name.

    Args:
        name: Name of the constructor, for the message.
        constructor: The constructor, whose signature has the known arguments.
        given: Names of the unknown arguments.
    """
    for argument in given:
        known = [each for each in inspect.signature(constructor).parameters if each != "unknown"]
        if argument in LoopConfig.model_fields:
            fix = f"write config=LoopConfig({argument}=…)."
        else:
            fix = f"use {_MOVED[argument]}." if argument in _MOVED else did_you_mean(argument, known)
        raise TypeError(f"{name}() has no argument {argument!r}; {fix}")


def build_graph(
    model: BaseChatModel,
    tools: Sequence[BaseTool | Callable[..., Any] | Mapping[str, Any]] | None = (),
    **options: Unpack[GraphOptions],
) -> GraphAgentBuilder:
    """Build an agent's graph from ready objects. Arguments that are not listed are those of `create_graph_agent`.

    Args:
        model: The chat model.
        tools: LangChain tools, callables with a docstring and type hints, and tools that the provider runs.
        options: `cache` stores plans, for runs with a `plan_cache_ttl_s`; the cache argument of `compile()` is
            LangGraph's own, for nodes. `warnings` returns texts about present problems, which each input reports as
            `warning` events. `resolve` returns the chat model for a name in `model` and `fallback_models`, here and in
            a run's context; None to accept only chat models.

    Returns:
        The graph, not compiled. Pass a checkpointer, a store and a cache to its `compile()`.

    Raises:
        ConfigError: The arguments do not fit together.
        TypeError: An argument is unknown; the message names the right one.
    """
    # Imported here: it loads the nodes, which a program that builds no graph does not need.
    with paused_collection():
        from graph_agent.session.assembly import assemble

    known = inspect.signature(assemble).parameters
    refuse_unknown_arguments("build_graph", assemble, [name for name in options if name not in known])
    graph = assemble(model, tools, **options)
    graph.arguments = MappingProxyType({"tools": tools, **options})
    return graph


if TYPE_CHECKING:

    class _Options(TypedDict, total=False):
        delegates: Sequence[Delegate]
        hooks: Sequence[LoopHook | Middleware]
        middleware: Sequence[Middleware]
        system_prompt: SystemPrompt | None
        prompts: Mapping[str, str] | None
        config: LoopConfig | None
        plan_schema: type[PlanningResult] | None
        state_schema: type[Any] | None
        resolve: Resolve | None
        skills: Sequence[str | Path]
        memory: AgentMemory | None

    class AgentOptions(CompileOptions, _Options, total=False):
        """The arguments that do not change the type of the agent."""

        checkpointer: BaseCheckpointSaver[Any] | bool | None

    class GraphOptions(_Options, total=False):
        """The arguments of `build_graph`."""

        response_format: Any
        context_schema: type[Any] | None
        cache: BaseCache[Any] | None
        warnings: Callable[[], Sequence[str]]


GivenResponseT = TypeVar("GivenResponseT", default=None)
GivenContextT = TypeVar("GivenContextT", default=AgentContext)


@overload
def create_graph_agent(
    model: BaseChatModel | str,
    tools: Sequence[BaseTool | Callable[..., Any] | Mapping[str, Any]] | None = (),
    *,
    response_format: type[GivenResponseT] | ResponseStrategy[GivenResponseT] | None = None,
    context_schema: type[GivenContextT] | None = None,
    **options: Unpack[AgentOptions],
) -> GraphAgent[GivenResponseT, GivenContextT]: ...


@overload
def create_graph_agent(
    model: BaseChatModel | str,
    tools: Sequence[BaseTool | Callable[..., Any] | Mapping[str, Any]] | None = (),
    *,
    response_format: dict[str, Any],
    context_schema: type[GivenContextT] | None = None,
    **options: Unpack[AgentOptions],
) -> GraphAgent[dict[str, Any], GivenContextT]: ...


@overload
def create_graph_agent(
    model: BaseChatModel | str,
    tools: Sequence[BaseTool | Callable[..., Any] | Mapping[str, Any]] | None = (),
    *,
    response_format: UnionType,
    context_schema: type[GivenContextT] | None = None,
    **options: Unpack[AgentOptions],
) -> GraphAgent[Any, GivenContextT]: ...


def create_graph_agent(
    model: BaseChatModel | str,
    tools: Sequence[BaseTool | Callable[..., Any] | Mapping[str, Any]] | None = (),
    *,
    delegates: Sequence[Delegate] = (),
    hooks: Sequence[LoopHook | Middleware] = (),
    middleware: Sequence[Middleware] = (),
    system_prompt: SystemPrompt | None = None,
    prompts: Mapping[str, str] | None = None,
    response_format: Any = None,
    config: LoopConfig | None = None,
    context_schema: type[Any] | None = AgentContext,
    plan_schema: type[PlanningResult] | None = None,
    state_schema: type[Any] | None = None,
    checkpointer: BaseCheckpointSaver[Any] | bool | None = None,
    store: BaseStore | None = None,
    cache: BaseCache[Any] | None = None,
    interrupt_before: All | list[str] | None = None,
    interrupt_after: All | list[str] | None = None,
    debug: bool = False,
    transformers: Sequence[Any] | None = None,
    name: str | None = "agent",
    resolve: Callable[[Any], BaseChatModel] | None = None,
    skills: Sequence[str | Path] = (),
    memory: AgentMemory | None = None,
    **unknown: Never,
) -> GraphAgent[Any, Any]:
    """Create an agent: a compiled LangGraph graph with the nodes `plan`, `tools`, `delegate` and `finalize`.

    A node `approve` is added if a person must approve calls: if `config.approve` is set, or a tool has the mark.

    Two environment variables are read here, once. `DEBUG_MOCK_RESPONSES`, a JSON array of replies, replaces every model
    by one script. `AGENTIC_LOOP_ENABLED` sets one planner for every session: `false` plans everything up front
    (`planner="dag"`) for any `tool_calling`; `true` makes structured plans wave by wave.

    Args:
        model: A chat model, or `"provider:name"`, e.g. `"openai:gpt-4o-mini"`.
        tools: LangChain tools, callables with a docstring and type hints, and tools that the model's provider runs, as
            dicts in the form of its API, e.g. `{"type": "web_search"}`. The list of `open_mcp_tools` may be passed
            unchanged: a `warning` event then reports each server that is down.
        delegates: Agents to hand tasks to; each is offered as `delegate_to_<name>`.
        hooks: `LoopHook`s, which see each planning reply and may rerun the model, in order; and `AgentMiddleware` of
            the `langchain` package, which wraps model requests and tool calls, outermost first.
        middleware: `AgentMiddleware`, which joins `hooks` after its items.
        system_prompt: The system prompt as text or as a `SystemMessage`, whose blocks may have cache marks, or a
            function that returns it, called at each request; a function with one parameter receives the state:
            `messages` and the own fields that have a value. None for "You are a helpful assistant."
        prompts: Templates that replace shipped prompts, by name (see `graph_agent.models.prompts.VARIABLES`); None to
            replace no prompt.
        response_format: Shape of the answer, as a pydantic class, a dataclass, a `TypedDict` class, a `Union` of these
            or a JSON schema; or a `ToolStrategy` or `ProviderStrategy` with one of these; None for an answer in text.
            `RunResult.structured_response` is an instance of the class; the state holds it as plain JSON.
        config: The loop's configuration; None for the defaults. A run's context overrides single fields.
        context_schema: Class of a run's context: `AgentContext` or a subclass, or any dataclass, pydantic class or
            `TypedDict` class (see the guide on sessions). None for `AgentContext`.
        plan_schema: Schema of structured plans: a subclass of `PlanningResult` that types `slots`; None for
            `PlanningResult` itself.
        state_schema: A `TypedDict` class with fields of your own for the state, such as a subclass of LangChain's
            `AgentState`; reducers in `Annotated` apply. None for no own fields.
        checkpointer: Stores sessions; None to store nothing, or to use a parent graph's. False stores nothing inside a
            parent graph, either; True is for a subgraph, as in LangGraph's `compile`.
        store: LangGraph store, injected into the tools that take one.
        cache: LangGraph cache; stores plans for runs with a `plan_cache_ttl_s`.
        interrupt_before: A list of the nodes before which each run stops, or `"*"` for all. None stops nowhere.
        interrupt_after: A list of the nodes after which each run stops, or `"*"` for all. None stops nowhere.
        debug: Whether LangGraph prints each step.
        transformers: Stream transformers, as in LangGraph's `compile`.
        name: Name of the agent; None or an empty text for `agent`.
        resolve: Returns the chat model for a name or object in `model`, the configuration or a run's context (which may
            come from a client); None for `graph_agent.models.resolve.resolve_model`.
        skills: Folders of Agent Skills, each a skill or a folder that holds skills; see the guide on skills.
        memory: Facts of users across sessions, from `graph_agent.memory.open_memory`; see the guide on memory. None for
            none. LangGraph's checkpointers, which other frameworks call memory, are `checkpointer`.

    Raises:
        ConfigError: When an argument is invalid, the arguments do not fit together, or the model cannot be built.
        TypeError: For an unknown argument; the message names the right one.
    """
    refuse_unknown_arguments("create_graph_agent", create_graph_agent, unknown)
    _check_storage("checkpointer", checkpointer, BaseCheckpointSaver | bool, "open_saver")
    _check_storage("store", store, BaseStore, "open_store")
    _check_storage("cache", cache, BaseCache, "open_cache")
    if memory is not None and not hasattr(memory, "recall"):
        raise ConfigError(
            f"memory={memory!r}: pass what `async with open_memory(address)` of graph_agent.memory opens. What stores "
            "sessions is a checkpointer: use checkpointer."
        )
    # Imported here: neither is needed before an agent is built.
    from graph_agent.models.resolve import resolve_model
    from graph_agent.models.scripted import MOCK_VARIABLE, MockChatModel, ScriptedChatModel, mock_model_from_env

    # One object for all names: its script is a single sequence of replies.
    mocked = model if isinstance(model, MockChatModel) else mock_model_from_env()
    find = (resolve or resolve_model) if mocked is None else lambda _: mocked
    if mocked is not model and mocked is not None and isinstance(model, ScriptedChatModel):
        # As in a test: its own script would be expected to answer.
        kind = type(model).__name__
        logger.warning("%s replaces the %s that the program passes; unset it to use that one.", MOCK_VARIABLE, kind)
    # A list that was spread, as in [*mcp_tools, own], is found by its tools.
    tools = [*tools] if isinstance(tools, Iterator) else tools
    given = tools if isinstance(tools, Iterable) else ()  # `build_graph` refuses, or takes apart, anything else
    lists = {id(each): each for each in [tools, *(getattr(tool, "source", None) for tool in given)] if each is not None}
    # A server that answers later leaves `failed`; one that has been opened never joins it.
    failed = [each for each in lists.values() if getattr(each, "failed", None)]
    graph = build_graph(
        find(model),
        tools=tools,
        delegates=delegates,
        hooks=hooks,
        middleware=middleware,
        system_prompt=system_prompt,
        prompts=prompts,
        response_format=response_format,
        config=config,
        context_schema=context_schema,
        plan_schema=plan_schema,
        state_schema=state_schema,
        cache=cache,
        warnings=partial(_servers_down, failed) if failed else tuple,
        resolve=find,
        skills=skills,
        memory=memory,
    )
    graph.mcp_states = next((each.states for each in lists.values() if hasattr(each, "states")), None)
    # LangGraph would take a text for a list of its characters.
    for argument, stops in (("interrupt_before", interrupt_before), ("interrupt_after", interrupt_after)):
        if isinstance(stops, str) and stops != "*":
            raise ConfigError(f"{argument}={stops!r}: give a list, e.g. {argument}=[{stops!r}].")
        for node in stops or ():
            if node != "*" and node not in graph.nodes:
                raise ConfigError(f"{argument}: there is no node {node!r}; {did_you_mean(str(node), graph.nodes)}")
    return graph.compile(
        checkpointer=checkpointer,
        store=store,
        cache=cache,
        name=name or "agent",
        debug=debug,
        transformers=transformers,
        interrupt_before=interrupt_before,
        interrupt_after=interrupt_after,
    )


def _servers_down(lists: Sequence[Any]) -> list[str]:
    """Return one sentence for each MCP server that is down.

    Args:
        lists: Lists of `open_mcp_tools`, whose `failed` maps the name of a server to the reason.
    """
    failed = {server: why for each in lists for server, why in each.failed.items()}
    return [f"The MCP server {server!r} is down, its tools are missing: {why}" for server, why in failed.items()]


def _check_storage(name: str, given: object, kind: Any, opener: str) -> None:
    """Raise `ConfigError` if an argument is neither None nor of its type.

    Args:
        name: Name of the argument, for the message.
        given: Value of the argument.
        kind: Type that it must have.
        opener: Name of the function that opens an object of the type, for the message.
    """
    if given is not None and not isinstance(given, kind):
        raise ConfigError(
            f"{name}={given!r}: pass an object of LangGraph's; `async with {opener}(address)` of "
            "graph_agent.persistence opens one by its address."
        )
