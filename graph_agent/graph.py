"""`build_graph`: an agent's graph from ready objects; no names are resolved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.language_models import BaseChatModel
from langgraph.cache.base import BaseCache

from graph_agent.config import LoopConfig
from graph_agent.context import AgentContext
from graph_agent.delegation import Delegate
from graph_agent.errors import ConfigError
from graph_agent.hooks.protocol import LoopHook

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

    from graph_agent.compiled import AgentStateGraph
    from graph_agent.models.pool import Resolve
    from graph_agent.waves.schema import PlanningResult

DEFAULT_SYSTEM_PROMPT = "You are a helpful assistant."


def build_graph(
    model: BaseChatModel,
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
    cache: BaseCache[Any] | None = None,
    warnings: Sequence[str] = (),
    resolve: Resolve | None = None,
) -> AgentStateGraph:
    """Build an agent's graph from ready objects.

    Args:
        model: The chat model.
        tools: LangChain tools, or callables with a docstring and type hints.
        delegates: Agents to hand tasks to; each is offered as `delegate_to_<name>`.
        hooks: `LoopHook`s, which see each planning reply and may rerun the model, in order; and `AgentMiddleware` of
            the `langchain` package, which wraps model requests and tool calls, outermost first.
        system_prompt: The system prompt, or a function that returns it, called at each request; a function with one
            parameter receives the state: `messages` and the own fields that have a value.
        prompts: Templates that replace shipped prompts, by name (see `graph_agent.prompts.VARIABLES`).
        response_format: Shape of the answer, as a pydantic class, a dataclass, a `TypedDict` class or a JSON schema.
            The state's `structured_response` is plain JSON.
        config: The loop's configuration; None for the defaults.
        context_schema: `AgentContext`, or a subclass with fields of your own.
        plan_schema: Schema of structured plans: a subclass of `PlanningResult` that types `slots`; None for
            `PlanningResult` itself.
        state_schema: A `TypedDict` class with fields of your own for the state, such as a subclass of LangChain's
            `AgentState`; reducers in `Annotated` apply. None for no own fields.
        cache: Cache of plans, for runs with a `plan_cache_ttl_s`; the cache argument of `compile()` is LangGraph's
            own, for nodes.
        warnings: Problems found while the arguments were made; reported as `warning` events at each input.
        resolve: Returns the chat model for a name in `model` and `fallback_models`, here and in a run's context; None
            to accept chat models only.

    Returns:
        The graph, not compiled: pass a checkpointer, a store and a cache to its `compile()`.

    Raises:
        ConfigError: When the arguments do not fit together.
    """
    if not (isinstance(context_schema, type) and issubclass(context_schema, AgentContext)):
        raise ConfigError(f"context_schema must be AgentContext or a subclass of it, not {context_schema!r}.")
    if config is not None and not isinstance(config, LoopConfig):
        raise ConfigError(f"config must be a LoopConfig, not {config!r}; write LoopConfig(**values).")
    config = config or LoopConfig()
    if config.plan_cache_ttl_s is not None and cache is None:
        raise ConfigError("plan_cache_ttl_s is set and there is no cache; pass e.g. cache=InMemoryCache().")
    # Imported here: it loads the nodes, which a program that builds no graph does not need.
    from graph_agent.assembly import assemble

    return assemble(
        model,
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
        warnings=warnings,
        resolve=resolve,
    )
