"""The models one agent may use: its own, the one a run asks for, and those that take over."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel

from graph_agent.config import LoopConfig
from graph_agent.errors import ConfigError
from graph_agent.models.capabilities import choose_tool_calling
from graph_agent.models.client import Mode, ModelClient
from graph_agent.models.single_attempt import without_client_retries
from graph_agent.models.structured import StructuredPlanner

Resolve = Callable[[Any], BaseChatModel]
"""Gives the chat model for a name, or for an object that should be one; raises `ConfigError` where there is none."""

ModelWrapper = Callable[[ModelClient, StructuredPlanner], tuple[ModelClient, StructuredPlanner]]

Around = ModelWrapper

_KEPT = 32
"""Models made for what runs bring; the one made first goes when there are more."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadyModel:
    """A model with what the loop needs to ask it."""

    name: str
    """What people are told it is."""
    given: Any
    """What it was made from; held here, so that the identity of an object is never that of another."""
    client: ModelClient
    planner: StructuredPlanner
    tool_calling: Mode
    """How calls are asked for when the configuration leaves it to the model."""
    takes_tools: bool
    """Whether its profile says that it takes tools; False where it says nothing."""
    window: int | None
    """Tokens it can read, by its profile; None where that is not known."""


def as_it_is(client: ModelClient, planner: StructuredPlanner) -> tuple[ModelClient, StructuredPlanner]:
    """A model's two ways to be asked, with nothing around them."""
    return client, planner


class ModelPool:
    """Makes models ready, once each.

    Args:
        own: The agent's model.
        config: The agent's configuration; the models it names are resolved here.
        resolve: Gives the chat model for what a configuration or a run names.
        schemas: The tools in OpenAI's function format.
        plan_schema: JSON schema of a structured plan.
        plan_tool: Name of the tool that hands a structured plan over.
        around: Puts something around a model's requests; the default puts nothing there.

    Raises:
        ConfigError: When `config` names a model that cannot be had.
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
        around: ModelWrapper = as_it_is,
    ) -> None:
        self._own = own
        self._config = config
        self._resolve = resolve
        self._schemas = schemas
        self._plan_schema = plan_schema
        self._plan_tool = plan_tool
        self._wrap = around
        self._lock = threading.Lock()
        self._per_run: dict[object, ReadyModel] = {}
        self._built: dict[object, ReadyModel] = {}
        for field, wanted in (("model", [config.model or own]), ("fallback_models", config.fallback_models)):
            for given in wanted:
                self._built[_key(given)] = self._build(given, field)
        self.first = self._built[_key(config.model or own)]
        """The model of a run that asks for no other."""

    async def chain(self, settings: LoopConfig) -> list[ReadyModel]:
        """The models of a run, in the order in which they are asked; each is there once.

        Raises:
            ConfigError: When the run names a model that cannot be had.
        """
        found = [await self.ready(settings.model or self._own, "model")]
        found += [await self.ready(given, "fallback_models") for given in settings.fallback_models]
        return list(dict.fromkeys(found))

    async def ready(self, given: Any, field: str) -> ReadyModel:
        """A model made ready, and kept for the next time.

        Args:
            given: A chat model, or a name that the agent's resolver knows.
            field: Who names it, for the error.

        Raises:
            ConfigError: When it cannot be had.
        """
        key = _key(given)
        ready = self._built.get(key) or self._per_run.get(key)
        if ready is None:
            # In a thread: a provider's package may have to be imported, and its client built.
            ready = await asyncio.to_thread(self._build, given, field)
            with self._lock:
                ready = self._per_run.setdefault(key, ready)
                if len(self._per_run) > _KEPT:
                    del self._per_run[next(iter(self._per_run))]
        return ready

    def _build(self, given: Any, field: str) -> ReadyModel:
        try:
            found = given if given is self._own else self._resolve(given)
        except ConfigError as error:
            raise ConfigError(f"{field}: {error}") from error
        model = without_client_retries(found)
        window = (model.profile or {}).get("max_input_tokens")
        client, planner = self._wrap(
            ModelClient(model, self._schemas), StructuredPlanner(model, self._plan_schema, self._plan_tool)
        )
        return ReadyModel(
            name=given if isinstance(given, str) else _name(model),
            given=given,
            client=client,
            planner=planner,
            tool_calling=choose_tool_calling(model, "auto", self._config.tool_calling_default),
            takes_tools=bool((model.profile or {}).get("tool_calling")),
            window=window if isinstance(window, int) and window > 0 else None,
        )


def ready_only(given: Any) -> BaseChatModel:
    """Take a chat model as it is.

    Raises:
        ConfigError: For anything else, a name above all.
    """
    if isinstance(given, BaseChatModel):
        return given
    raise ConfigError(
        f"{given!r} is no chat model, and this graph was built without a way to resolve names; "
        "pass resolve= to build_graph, or use create_graph_agent."
    )


def _key(given: Any) -> object:
    # Chat models have no hash.
    return given if isinstance(given, str) else id(given)


def _name(model: BaseChatModel) -> str:
    named = getattr(model, "model_name", None) or getattr(model, "model", None)
    return named if isinstance(named, str) else type(model).__name__
