"""Requests structured plans by the best supported method: provider schema, tool, or plain text."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableBinding

from graph_agent._internal.failure_log import get_logger
from graph_agent.models.capabilities import choose_tool_calling
from graph_agent.models.errors import classify_model_error
from graph_agent.models.retry import ask
from graph_agent.models.sanitize import as_plans, sanitized_all
from graph_agent.settings.config import LoopConfig
from graph_agent.usage import with_usage


class Binding(NamedTuple):
    """A model, and the tools and options of each of its calls."""

    runnable: Runnable[LanguageModelInput, AIMessage]
    options: dict[str, Any]


class ModelCall(NamedTuple):
    """One model call: the model, its options, and the messages in the form for that model."""

    runnable: Runnable[LanguageModelInput, AIMessage]
    options: dict[str, Any]
    request: list[BaseMessage]
    bounded: bool = False
    """Whether its requests have their own time limits, so that the caller must set none."""


def with_options(settings: LoopConfig, further: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the configuration, overridden by `further`; a value of None removes an option."""
    options = {**dict(settings.model_options()), **further}
    return {name: value for name, value in options.items() if value is not None}


def unwrap_binding(runnable: Any) -> Binding:
    """Split a plain binding into model and options: each call would merge its empty config into the run's."""
    plain = isinstance(runnable, RunnableBinding) and type(runnable).ainvoke is RunnableBinding.ainvoke
    if not plain or runnable.config or runnable.config_factories:
        return Binding(runnable, {})
    return Binding(runnable.bound, dict(runnable.kwargs))


def openai_response_format(model: BaseChatModel, schema: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return the option that enforces a schema on an OpenAI model; None if its profile does not support one.

    Args:
        schema: JSON schema of the reply.
    """
    if model._llm_type != "openai-chat" or not (model.profile or {}).get("structured_output"):
        return None
    # Strict schemas forbid objects with arbitrary keys, such as a tool's arguments.
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": False}}


logger = get_logger(__name__)

PlanMethod = Literal["schema", "tool", "text"]

_TEMPERATURE = re.compile(r"temperature", re.IGNORECASE)
_SCHEMA = re.compile(r"response_format|json_schema|structured output|guided", re.IGNORECASE)


class StructuredPlanner:
    """Requests plans from a chat model.

    The temperature is 0 unless configured. If a model refuses a temperature, later requests omit it. If a provider
    refuses a schema or a tool, later requests use the next simpler method.

    Args:
        schema: JSON schema of a plan.
        tool: Name of the tool that receives a plan, for the method `tool`.
    """

    def __init__(self, model: BaseChatModel, schema: dict[str, Any], tool: str) -> None:
        self.model, self.schema, self.tool = model, schema, tool
        self._response_format = openai_response_format(model, schema, "plan")
        self._methods: list[PlanMethod] = ["text"]
        if choose_tool_calling(model, "auto") == "native":
            self._methods.insert(0, "tool")
        if self._response_format is not None:
            self._methods.insert(0, "schema")
        self._zero_temperature = True
        self._options: Mapping[str, Any] = {}

    def with_overrides(self, options: Mapping[str, Any]) -> StructuredPlanner:
        """Return the planner with options that override the configuration's; a value of None removes an option."""
        other = copy.copy(self)
        other._options = {**self._options, **options}
        return other

    async def plan(
        self, request: Sequence[AnyMessage], settings: LoopConfig, *, offered: Sequence[dict[str, Any]] = ()
    ) -> AIMessage:
        """Request one plan, without tokens in the message stream.

        Args:
            offered: OpenAI schemas of the tools in the system prompt, for subclasses that wrap the planner.

        Raises:
            Exception: The provider's error, if no simpler method remains.
        """
        rendered = as_plans(sanitized_all(request))
        while True:
            method, zero_temperature = self._methods[0], self._zero_temperature
            bound = self._bound(method, settings, zero_temperature=zero_temperature)
            try:
                reply = await ask(
                    bound.runnable,
                    rendered,
                    bound.options,
                    retries=settings.model_retries,
                    timeout_s=settings.model_timeout_s,
                    total_s=settings.model_total_timeout_s,
                )
            except Exception as error:
                if not self._fall_back(
                    error, method, zero_temperature=zero_temperature and settings.temperature is None
                ):
                    raise
            else:
                return with_usage(reply, rendered, settings, bound.options.get("tools"))

    def _fall_back(self, error: Exception, method: PlanMethod, *, zero_temperature: bool) -> bool:
        """Whether the error names an option to omit; if so, omit it from now on."""
        if isinstance(error, NotImplementedError) or classify_model_error(error) == "tools_rejected":
            simpler = method != "text"
        elif classify_model_error(error) != "other":
            return False
        elif zero_temperature and _TEMPERATURE.search(str(error)):
            self._zero_temperature = False
            return True
        else:
            simpler = method == "schema" and _SCHEMA.search(str(error)) is not None
        # Another session may have removed the method already.
        if simpler and self._methods[0] == method:
            logger.info("The model takes no plan by %s; asking by %s from now on", method, self._methods[1])
            self._methods.pop(0)
        return simpler

    def _bound(self, method: PlanMethod, settings: LoopConfig, *, zero_temperature: bool) -> Binding:
        options = with_options(settings, self._options)
        options.pop("stop", None)  # it applies to answers and would truncate a plan's JSON
        if zero_temperature:
            options.setdefault("temperature", 0)
        if method == "schema":
            options["response_format"] = self._response_format
        if method == "tool":
            function = {"name": self.tool, "description": "Hand the plan over.", "parameters": self.schema}
            offered = [{"type": "function", "function": function}]
            return unwrap_binding(self.model.bind_tools(offered, tool_choice=self.tool, **options))
        return Binding(self.model, options)
