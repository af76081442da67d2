"""Holds the models of one agent: its own, the models selected by runs, and the fallbacks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from langchain_core.language_models import BaseChatModel

from graph_agent.base.errors import ConfigError
from graph_agent.base.settings.candidates import models_in
from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.usage import name_of_model
from graph_agent.models.capabilities import choose_tool_calling
from graph_agent.models.client import Mode, ModelClient, ToolSchemas
from graph_agent.models.structured import StructuredPlanner
from graph_agent.models.wire.client_retries import without_client_retries
from graph_agent.models.wire.learn import Endpoint, endpoint_of
from graph_agent.models.wire.shape import adapted_copy

if TYPE_CHECKING:
    from graph_agent.models.provider_tools import ProviderTool

Resolve = Callable[[Any], BaseChatModel]
"""Returns the chat model for a name or an object; raises `ConfigError` if it cannot build one."""

ModelWrapper = Callable[[ModelClient, StructuredPlanner], tuple[ModelClient, StructuredPlanner]]

"""Wraps a model's client and planner, e.g. in middleware, and returns the two that are used instead."""

_KEPT = 32
"""Maximum number of cached models that runs have selected; the oldest is evicted first."""


@dataclass(frozen=True, slots=True, eq=False)
class BoundModel:
    """A chat model with the clients that send its requests, and what is known about it."""

    name: str
    """The model's name in messages to users."""
    given: Any
    """The name or object that the model was built from.

    The reference keeps an object's `id`, a cache key, from being reused.
    """
    client: ModelClient
    """Sends requests for calls and answers."""
    planner: StructuredPlanner
    """Sends requests for structured plans."""
    tool_calling: Mode
    """How the model returns calls if the configuration is `auto`."""
    takes_tools: bool
    """Whether the model's profile declares tool calling; False if the profile does not mention it."""
    window: int | None
    """Maximum input tokens by the model's profile or its endpoint's rules; None if unknown."""
    is_known: bool
    """Whether the endpoint's rules are those of a known provider or server."""
    _learned: list[int] = field(default_factory=list, init=False)

    @property
    def learned_window(self) -> int | None:
        """Maximum input tokens that the server reported, kept until the process ends; None if it reported none."""
        return self._learned[-1] if self._learned else None

    def learn_window(self, tokens: int) -> None:
        """Set `learned_window` to the maximum input tokens that the server reported."""
        self._learned[:] = [tokens]


def leave_unwrapped(client: ModelClient, planner: StructuredPlanner) -> tuple[ModelClient, StructuredPlanner]:
    """Return both clients unchanged: the `ModelWrapper` of an agent without middleware."""
    return client, planner


class ModelPool:
    """Builds and caches the models of one agent: its own, the fallbacks, and those that runs select.

    Args:
        own: The model that the agent was built with.
        config: The agent's configuration; all models it names are built at once.
        resolve: Returns the chat model for the value in a configuration or a run.
        schemas: The offered tools, in OpenAI's function format.
        plan_schema: JSON schema of a structured plan.
        plan_tool: Name of the tool that receives a structured plan.
        around: Wraps the clients of each model; by default they are not wrapped.
        provider_tools: Tools that a model's provider runs; each model is offered those that its API has.

    Raises:
        ConfigError: `config` names a model that cannot be built, or no model has one of `provider_tools`.
    """

    def __init__(
        self,
        own: BaseChatModel,
        *,
        config: LoopConfig,
        resolve: Resolve,
        schemas: Sequence[dict[str, Any]],
        plan_schema: dict[str, Any],
        plan_tool: str,
        around: ModelWrapper = leave_unwrapped,
        provider_tools: Sequence[ProviderTool] = (),
    ) -> None:
        self.own = own
        """The model that the agent was built with."""
        self.resolve = resolve
        """Returns the chat model for the value in a configuration or a run."""
        self._schemas = schemas
        self._plan_schema = plan_schema
        self._plan_tool = plan_tool
        self._wrap = around
        self._provider_tools = provider_tools
        self._lock = threading.Lock()
        self._run_models: dict[object, BoundModel] = {}
        self._built: dict[object, BoundModel] = {}
        for name, wanted in (
            ("model", [config.model or own]),
            ("fallback_models", config.fallback_models),
            *models_in(config.candidates, config.choose).items(),
        ):
            for given in wanted:
                self._built[_key(given, config)] = self._build(given, name, config)
        self.drops_tools: dict[str, bool] = {}
        """Name of a model → whether its server leaves the tools out of the prompt; no entry while unknown."""
        self.first = self._built[_key(config.model or own, config)]
        """The model of runs that select no other: `config.model` if set, otherwise `own`."""
        self._config, self._of_config = config, list(dict.fromkeys(self._built.values()))
        if provider_tools:
            from graph_agent.models.provider_tools import check_provider_tools

            models = [(each.name, each.client.model, each.client.endpoint.rules) for each in self._built.values()]
            check_provider_tools(provider_tools, models, ToolSchemas.of(schemas).names, config.tool_calling)

    async def chain(self, settings: LoopConfig) -> list[BoundModel]:
        """Return the models of a run: the selected one, then the fallbacks in order, each once.

        Builds those that are not cached.

        Args:
            settings: The run's settings, with `model` and `fallback_models`.

        Raises:
            ConfigError: A model cannot be built; the text has the name of the setting.
        """
        # Most runs have the agent's own configuration.
        if settings is self._config:
            return self._of_config
        found = [await self.ready(settings.model or self.own, "model", settings)]
        found += [await self.ready(given, "fallback_models", settings) for given in settings.fallback_models]
        return list(dict.fromkeys(found))

    async def ready(self, given: Any, field: str, settings: LoopConfig) -> BoundModel:
        """Return the model of a setting from the cache, or build it in a thread and cache it.

        The agent's configured models stay cached; above `_KEPT` other models, the oldest is dropped.

        Args:
            given: A model's name or object.
            field: Name of the setting, for the error.
            settings: The run's settings, whose `model_rules` apply to the model.

        Raises:
            ConfigError: The model cannot be built.
        """
        key = _key(given, settings)
        ready = self._built.get(key) or self._run_models.get(key)
        if ready is None:
            # In a thread: importing a provider's package and building its client may block.
            ready = await asyncio.to_thread(self._build, given, field, settings)
            with self._lock:
                # Two runs may have built the same model at once; both use the first one.
                ready = self._run_models.setdefault(key, ready)
                if len(self._run_models) > _KEPT:
                    del self._run_models[next(iter(self._run_models))]
        return ready

    def _client(self, model: BaseChatModel, endpoint: Endpoint) -> ModelClient:
        """Return the client of a model, which also offers the tools that its provider runs."""
        if not self._provider_tools:
            return ModelClient(model, self._schemas, endpoint=endpoint)
        # Imported here: most agents have no such tools.
        from graph_agent.models.provider_client import ProviderToolClient

        return ProviderToolClient(model, self._schemas, self._provider_tools, endpoint=endpoint)

    def _build(self, given: Any, field: str, settings: LoopConfig) -> BoundModel:
        """Build a model with its client and planner, wrapped in middleware; the client's own retries are turned off.

        The context window is that of the model's profile, or else of the endpoint's rules. Tools are called in text if
        the endpoint takes none.

        Args:
            given: The model's name, endpoint or chat model; `own` is used as it is.
            field: The field of the configuration that names the model, for errors.
            settings: The configuration, which may have rules for the model.

        Raises:
            ConfigError: The model cannot be built; the text begins with the field.
        """
        try:
            found = given if given is self.own else self.resolve(given)
        except ConfigError as error:
            raise ConfigError(f"{field}: {error}") from error
        model = adapted_copy(without_client_retries(found), found)
        name = given if isinstance(given, str) else name_of_model(model) or type(model).__name__
        endpoint = endpoint_of(model, settings.rules_of(name, name_of_model(model)))
        window = (model.profile or {}).get("max_input_tokens") or endpoint.rules.window
        client, planner = self._wrap(
            self._client(model, endpoint), StructuredPlanner(model, self._plan_schema, self._plan_tool, endpoint)
        )
        return BoundModel(
            name=name,
            given=given,
            client=client,
            planner=planner,
            tool_calling=choose_tool_calling(model, "auto") if endpoint.rules.tools else "text",
            takes_tools=bool((model.profile or {}).get("tool_calling")),
            window=window if isinstance(window, int) and window > 0 else None,
            is_known=endpoint.rules.is_known,
        )


def require_chat_model(given: Any) -> BaseChatModel:
    """Return `given` if it is a chat model. This is the resolver of an agent that cannot resolve names of models.

    Raises:
        ConfigError: `given` is anything else, such as a name.
    """
    if isinstance(given, BaseChatModel):
        return given
    raise ConfigError(
        f"{given!r} is not a chat model, and this graph was built without a resolver of names; "
        "pass resolve= to build_graph, or use create_graph_agent."
    )


def _key(given: Any, settings: LoopConfig) -> object:
    """Return the cache key of a model: its name or its `id()`, with the settings' `model_rules` if there are any."""
    # Chat models are not hashable.
    key = given if isinstance(given, str) else id(given)
    return (key, repr(settings.model_rules)) if settings.model_rules else key
