"""Builds the agent of an agent file: its model, tools, delegates, hooks and prompts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool
from langgraph.cache.base import BaseCache
from langgraph.store.base import BaseStore
from langgraph.types import Checkpointer

from graph_agent.agent import create_graph_agent
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.errors import ConfigError, located
from graph_agent.hooks.registry import sort_hooks
from graph_agent.models.mock import mock_model_from_env
from graph_agent.models.resolve import resolve_model
from graph_agent.prompts import PromptTemplate, read_prompt_file
from graph_agent.spec.hooks import HookSpec, load_hook
from graph_agent.spec.imports import load_attribute, make
from graph_agent.spec.response_format import load_response_format
from graph_agent.tools.argument_checks import checked_tool

if TYPE_CHECKING:
    from graph_agent.spec.agent_file import AgentSpec

T = TypeVar("T")

SYSTEM_VARIABLES = frozenset({"name", "description", "today"})
"""Variables of a system prompt's template; `today` is an ISO date."""
_TEMPLATE = re.compile(r"\{[{%#]")


def build(
    spec: AgentSpec,
    tools: list[BaseTool],
    today: date | None,
    saver: Checkpointer,
    store: BaseStore | None,
    cache: BaseCache[Any] | None,
    *,
    model: BaseChatModel | None = None,
) -> CompiledAgentGraph:
    """Build the agent of a file.

    Args:
        spec: The file's content.
        tools: The tools of its MCP servers; the file's own are appended.
        today: The date in the system prompt; None for the real date, read at each request.
        saver: The checkpointer; None for none.
        store: The store; None for none.
        cache: The cache of plans; None for none.
        model: The model in place of the file's; None for the file's.

    Raises:
        ConfigError: If something that the file names cannot be built.
    """
    model = model or mock_model_from_env()
    with located(f"Agent file {spec.path}"):
        model = _model(spec) if model is None else model
        tools.extend(_each("tools", spec.tools, lambda name: _tool(name, spec)))
        return create_graph_agent(
            model,
            tools=tools,
            delegates=_each("delegates", spec.delegates, lambda delegate: delegate.build(spec.folder)),
            hooks=_each("hooks", spec.hooks, lambda hook: _hook(hook, spec)),
            system_prompt=_system_prompt(spec, today),
            prompts=_prompts(spec),
            response_format=_response_format(spec),
            config=spec.loop_config(),
            checkpointer=saver,
            store=store,
            cache=cache,
            name=spec.name,
            resolve=_resolver(spec),
        )


def model_candidates(spec: AgentSpec) -> list[tuple[str, BaseChatModel | ConfigError]]:
    """Return each model that a file names, in order, with the model itself or the reason why it cannot be built."""
    found: list[tuple[str, BaseChatModel | ConfigError]] = []
    for name in [spec.model] if isinstance(spec.model, str) else spec.model:
        try:
            found.append((name, _candidate(name, spec)))
        except ConfigError as error:
            found.append((name, error))
    return found


def _each(field: str, given: Sequence[T], build: Callable[[T], Any]) -> list[Any]:
    built = []
    for at, one in enumerate(given):
        with located(f"{field}.{at}"):
            built.append(build(one))
    return built


def _tool(name: str, spec: AgentSpec) -> BaseTool:
    return checked_tool(load_attribute(name, spec.folder), repr(name))


def _hook(given: HookSpec, spec: AgentSpec) -> Any:
    hook = load_hook(given, spec.folder)
    with located(repr(given.use)):
        sort_hooks([hook])
    return hook


def _prompts(spec: AgentSpec) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name, file in spec.prompts.items():
        with located(f"prompts.{name}"):
            texts[name] = read_prompt_file(spec.folder / file)
    return texts


def _response_format(spec: AgentSpec) -> type[Any] | dict[str, Any] | None:
    if spec.response_format is None:
        return None
    with located("response_format"):
        return load_response_format(spec.response_format, spec.folder)


def _resolver(spec: AgentSpec) -> Callable[[Any], BaseChatModel]:
    """Return the resolver of model names; dotted names resolve only if the file has them, as a run's are untrusted."""
    config = spec.loop_config()
    own = [config.model, *config.fallback_models]
    return lambda given: _candidate(given, spec) if isinstance(given, str) and given in own else resolve_model(given)


def _model(spec: AgentSpec) -> BaseChatModel:
    candidates = [spec.model] if isinstance(spec.model, str) else spec.model
    refusals: list[str] = []
    for candidate in candidates:
        try:
            return _candidate(candidate, spec)
        except ConfigError as error:
            refusals.append(f"Agent file {spec.path}: model={candidate!r}: {error}")
    raise ConfigError("\n".join(refusals))


def _candidate(name: str, spec: AgentSpec) -> BaseChatModel:
    factory = load_attribute(name, spec.folder, missing_ok=True)
    if factory is None:
        return resolve_model(name)
    model = factory if isinstance(factory, BaseChatModel) else make(name, factory, "a chat model")
    if not isinstance(model, BaseChatModel):
        raise ConfigError(f"{name!r} gave {model!r}; a model factory returns a LangChain chat model.")
    return model


def _system_prompt(spec: AgentSpec, today: date | None) -> str | Callable[[], str]:
    text, where = spec.system_prompt, f"Agent file {spec.path}: system_prompt"
    if text.endswith((".yaml", ".yml")):
        file = spec.folder / text
        with located("system_prompt"):
            text, where = read_prompt_file(file), str(file)
    elif not _TEMPLATE.search(text):
        return text
    template = PromptTemplate(text, SYSTEM_VARIABLES, where)
    return lambda: template.render(
        name=spec.name, description=spec.description, today=(today or date.today()).isoformat()
    )
