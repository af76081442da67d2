"""`create_graph_agent`: resolve names to objects, then build and compile the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.language_models import BaseChatModel
from langgraph.cache.base import BaseCache
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore
from langgraph.types import Checkpointer

from graph_agent.compiled import CompiledAgentGraph
from graph_agent.config import LoopConfig
from graph_agent.context import AgentContext
from graph_agent.delegation import Delegate
from graph_agent.errors import ConfigError
from graph_agent.graph import DEFAULT_SYSTEM_PROMPT, build_graph
from graph_agent.hooks.protocol import LoopHook

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

    from graph_agent.compiled import CompiledAgentGraph
    from graph_agent.waves.schema import PlanningResult


def create_graph_agent(
    model: BaseChatModel | str,
    tools: Sequence[BaseTool | Callable[..., Any]] = (),
    *,
    delegates: Sequence[Delegate] = (),
    hooks: Sequence[LoopHook | Any] = (),
    system_prompt: str | Callable[[], str] | Callable[[dict[str, Any]], str] = DEFAULT_SYSTEM_PROMPT,
    prompts: Mapping[str, str] | None = None,
    response_format: type[Any] | dict[str, Any] | None = None,
    config: LoopConfig | None = None,
    context_schema: type[AgentContext] = AgentContext,
    plan_schema: type[PlanningResult] | None = None,
    state_schema: type[Any] | None = None,
    checkpointer: Checkpointer = None,
    store: BaseStore | None = None,
    cache: BaseCache[Any] | None = None,
    name: str = "agent",
    resolve: Callable[[Any], BaseChatModel] | None = None,
) -> CompiledAgentGraph:
    """Create an agent: a compiled LangGraph graph with the nodes `plan`, `tools`, `delegate` and `finalize`.

    A node `approve` is added if a person must approve calls: if `config.approve` is set, or a tool has the mark.

    Two environment variables are read here, once. `DEBUG_MOCK_RESPONSES`, a JSON array of strings, replaces every model
    by one script. `AGENTIC_LOOP_ENABLED` sets one planner for every session: `false` plans everything up front
    (`planner="dag"`) whatever the value of `tool_calling`; `true` makes structured plans wave by wave.

    Args:
        model: A chat model, or `"provider:name"`, e.g. `"openai:gpt-4o-mini"`.
        tools: LangChain tools, or callables with a docstring and type hints. The list of `open_mcp_tools` may
            be passed unchanged: a `warning` event then reports each server that is down.
        delegates: Agents to hand tasks to; each is offered as `delegate_to_<name>`.
        hooks: `LoopHook`s, which see each planning reply and may rerun the model, in order; and `AgentMiddleware` of
            the `langchain` package, which wraps model requests and tool calls, outermost first.
        system_prompt: The system prompt, or a function that returns it, called at each request; a function with one
            parameter receives the state: `messages` and the own fields that have a value.
        prompts: Templates that replace shipped prompts, by name.
        response_format: Shape of the answer, as a pydantic class, a dataclass, a `TypedDict` class or a JSON schema.
            `RunResult.structured_response` is an instance of the class; the state holds it as plain JSON.
        config: The loop's configuration; None for the defaults. A run's context overrides single fields.
        context_schema: `AgentContext`, or a subclass with fields of your own.
        plan_schema: Schema of structured plans: a subclass of `PlanningResult` that types `slots`; None for
            `PlanningResult` itself.
        state_schema: A `TypedDict` class with fields of your own for the state, such as a subclass of LangChain's
            `AgentState`; reducers in `Annotated` apply. None for no own fields.
        checkpointer: Stores sessions; None to store nothing, or to use a parent graph's.
        store: LangGraph store, injected into the tools that take one.
        cache: LangGraph cache; stores plans for runs with a `plan_cache_ttl_s`.
        name: The agent's name.
        resolve: Returns the chat model for a name or object in `model`, the configuration or a run's context (which may
            come from a client); None for `graph_agent.models.resolve.resolve_model`.

    Raises:
        ConfigError: When the arguments do not fit together, or the model cannot be built.
    """
    _check_storage("checkpointer", checkpointer, BaseCheckpointSaver | bool, "open_saver")
    _check_storage("store", store, BaseStore, "open_store")
    _check_storage("cache", cache, BaseCache, "open_cache")
    # Imported here: neither is needed before an agent is built.
    from graph_agent.models.mock import MockChatModel, mock_model_from_env
    from graph_agent.models.resolve import resolve_model

    mocked = model if isinstance(model, MockChatModel) else mock_model_from_env()
    find = (resolve or resolve_model) if mocked is None else lambda _: mocked
    failed: Mapping[str, str] = getattr(tools, "failed", {})
    graph = build_graph(
        find(model),
        tools=tools,
        delegates=delegates,
        hooks=hooks,
        system_prompt=system_prompt,
        prompts=prompts,
        response_format=response_format,
        config=config,
        context_schema=context_schema,
        plan_schema=plan_schema,
        state_schema=state_schema,
        cache=cache,
        warnings=[f"The MCP server {server!r} is down, its tools are missing: {why}" for server, why in failed.items()],
        resolve=find,
    )
    graph.mcp_states = getattr(tools, "states", None)
    return graph.compile(checkpointer=checkpointer, store=store, cache=cache, name=name)


def _check_storage(name: str, given: object, kind: Any, opener: str) -> None:
    if given is not None and not isinstance(given, kind):
        raise ConfigError(
            f"{name}={given!r}: pass an object of LangGraph's; `async with {opener}(address)` of "
            "graph_agent.persistence.open opens one by its address."
        )
