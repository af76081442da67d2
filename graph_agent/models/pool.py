"""Holds the models of one agent: its own, the models selected by runs, and the fallbacks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from langchain_core.language_models import BaseChatModel

from graph_agent.errors import ConfigError
from graph_agent.models.capabilities import choose_tool_calling
from graph_agent.models.client import Mode, ModelClient
from graph_agent.models.retry import without_client_retries
from graph_agent.models.structured import StructuredPlanner
from graph_agent.settings.config import LoopConfig

Resolve = Callable[[Any], BaseChatModel]
"""Returns the chat model for a name or an object; raises `ConfigError` if there is none."""

ModelWrapper = Callable[[ModelClient, StructuredPlanner], tuple[ModelClient, StructuredPlanner]]

"""Wraps the two clients of a model, e.g. in middleware."""

_KEPT = 32
"""Maximum number of cached models selected by runs; the oldest is evicted first."""


@dataclass(frozen=True, slots=True, eq=False)
class BoundModel:
    """A model with its clients and capabilities."""

    name: str
    """Its name in messages to users."""
    given: Any
    """The object it was built from; the reference keeps its `id` from being reused as a cache key."""
    client: ModelClient
    planner: StructuredPlanner
    tool_calling: Mode
    """How the model returns calls if the configuration is `auto`."""
    takes_tools: bool
    """Whether its profile declares support of tools; False without an entry."""
    window: int | None
    """Maximum input tokens by its profile; None if unknown."""


def leave_unwrapped(client: ModelClient, planner: StructuredPlanner) -> tuple[ModelClient, StructuredPlanner]:
    """Return both clients unchanged."""
    return client, planner


class ModelPool:
    """Builds and caches the models of one agent.

    Args:
        own: The agent's model.
        config: The agent's configuration; the models it names are resolved here.
        resolve: Returns the chat model for the value in a configuration or a run.
        schemas: The tools in OpenAI's function format.
        plan_schema: JSON schema of a structured plan.
        plan_tool: Name of the tool that receives a structured plan.
        around: Wraps the clients of each model; the default does not.

    Raises:
        ConfigError: If `config` names a model that cannot be built.
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
    ) -> None:
        self._own = own
        self._resolve = resolve
        self._schemas = schemas
        self._plan_schema = plan_schema
        self._plan_tool = plan_tool
        self._wrap = around
        self._lock = threading.Lock()
        self._run_models: dict[object, BoundModel] = {}
        self._built: dict[object, BoundModel] = {}
        for field, wanted in (("model", [config.model or own]), ("fallback_models", config.fallback_models)):
            for given in wanted:
                self._built[_key(given)] = self._build(given, field)
        self.first = self._built[_key(config.model or own)]
        """The model of runs that do not select another."""

    async def chain(self, settings: LoopConfig) -> list[BoundModel]:
        """Return the distinct models of a run: its model, then the fallbacks in order.

        Raises:
            ConfigError: If the run names a model that cannot be built.
        """
        found = [await self.ready(settings.model or self._own, "model")]
        found += [await self.ready(given, "fallback_models") for given in settings.fallback_models]
        return list(dict.fromkeys(found))

    async def ready(self, given: Any, field: str) -> BoundModel:
        """Build a model, or return it from the cache.

        Args:
            given: A chat model, or a name that the agent's resolver accepts.
            field: The setting that names it, for the error.

        Raises:
            ConfigError: If it cannot be built.
        """
        key = _key(given)
        ready = self._built.get(key) or self._run_models.get(key)
        if ready is None:
            # In a thread: importing a provider's package and building its client may block.
            ready = await asyncio.to_thread(self._build, given, field)
            with self._lock:
                ready = self._run_models.setdefault(key, ready)
                if len(self._run_models) > _KEPT:
                    del self._run_models[next(iter(self._run_models))]
        return ready

    def _build(self, given: Any, field: str) -> BoundModel:
        try:
            found = given if given is self._own else self._resolve(given)
        except ConfigError as error:
            raise ConfigError(f"{field}: {error}") from error
        model = without_client_retries(found)
        window = (model.profile or {}).get("max_input_tokens")
        client, planner = self._wrap(
            ModelClient(model, self._schemas), StructuredPlanner(model, self._plan_schema, self._plan_tool)
        )
        return BoundModel(
            name=given if isinstance(given, str) else _name(model),
            given=given,
            client=client,
            planner=planner,
            tool_calling=choose_tool_calling(model, "auto"),
            takes_tools=bool((model.profile or {}).get("tool_calling")),
            window=window if isinstance(window, int) and window > 0 else None,
        )


def require_chat_model(given: Any) -> BaseChatModel:
    """Return a chat model unchanged.

    Raises:
        ConfigError: For anything else, e.g. a name.
    """
    if isinstance(given, BaseChatModel):
        return given
    raise ConfigError(
        f"{given!r} is not a chat model, and this graph was built without a resolver of names; "
        "pass resolve= to build_graph, or use create_graph_agent."
    )


def _key(given: Any) -> object:
    # Chat models are not hashable.
    return given if isinstance(given, str) else id(given)


def _name(model: BaseChatModel) -> str:
    named = getattr(model, "model_name", None) or getattr(model, "model", None)
    return named if isinstance(named, str) else type(model).__name__


OK = "ok"
_TIMEOUT_S = 3.0
_REFUSED = {401: "auth", 403: "permission"}


async def endpoint_state(model: Any) -> tuple[str, str]:
    """Return whether a model's endpoint answers and accepts its key, and a remark.

    Lists the endpoint's models. If that fails, it sends an empty completion request, which an endpoint that works
    refuses: some servers have no list of models, or a broken one.

    Args:
        model: The chat model; a model without an OpenAI client counts as `ok`, because it could be built.

    Returns:
        `ok`, `auth`, `permission` or `unreachable`; and what is wrong with the list of models, empty for nothing.
    """
    client: Any = getattr(model, "root_async_client", None)
    if not callable(getattr(client, "with_options", None)):
        return OK, ""
    client = client.with_options(max_retries=0, timeout=_TIMEOUT_S)
    listed = f"GET {str(client.base_url).rstrip('/')}/models"
    try:
        answer = await client.models.with_raw_response.list()
        if _is_list(answer.http_response):
            return OK, ""
        remark = f"{listed} answers with no list of models"
    except Exception as error:  # noqa: BLE001 - a client may raise anything; any error is a state
        status = getattr(error, "status_code", None)
        if not isinstance(status, int):
            return "unreachable", ""
        if status in _REFUSED:
            return _REFUSED[status], ""
        # Some servers have no list.
        remark = "" if status == 404 else f"{listed} fails with HTTP {status}"
    try:
        answer = await client.post("/chat/completions", body={}, cast_to=httpx.Response)
        status = answer.status_code
    except Exception as error:  # noqa: BLE001 - as above
        status, answer = getattr(error, "status_code", None), getattr(error, "response", None)
    if status in _REFUSED:
        return _REFUSED[status], remark
    # A web page is not an answer of a model's endpoint.
    is_page = isinstance(answer, httpx.Response) and "html" in answer.headers.get("content-type", "")
    if not isinstance(status, int) or status >= 500 or status == 404 or is_page:
        return "unreachable", remark
    return OK, remark


def _is_list(answer: httpx.Response) -> bool:
    """Whether an answer is a list of models: an object with `data`, or an array, as of some servers."""
    try:
        found = answer.json()
    except ValueError:
        return False
    return isinstance(found, list) or (isinstance(found, dict) and "data" in found)
