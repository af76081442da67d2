"""Requests structured plans by provider schema, tool or plain text, and converts JSON schemas for providers."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage

from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base.settings.config import Dispatch, LoopConfig
from graph_agent.base.tool_names import alias_of
from graph_agent.base.usage import with_usage
from graph_agent.models.binding import Binding, stop_sequences, unwrap_binding, with_options
from graph_agent.models.capabilities import choose_tool_calling
from graph_agent.models.errors import classify_model_error
from graph_agent.models.retry import ask
from graph_agent.models.sanitize import SafeMessages, sanitized_all, with_traits
from graph_agent.models.schema_modes import ABOUT_SCHEMAS, SchemaMode, reply_form, reply_of_length_error
from graph_agent.models.text_replies import MOST_TOOLS, ignores_schema
from graph_agent.models.wire.clients import bind_tools, choice_of, client_options, keeps_provider_calls
from graph_agent.models.wire.error_parts import failure_text
from graph_agent.models.wire.examples import example_plans, with_examples
from graph_agent.models.wire.learn import Endpoint, LearningRequest, endpoint_of
from graph_agent.models.wire.render import render
from graph_agent.models.wire.rules import WireRules
from graph_agent.models.wire.shape import shaped
from graph_agent.models.wire.text_form import as_plans
from graph_agent.models.wire.toolbox_schema import plan_schema

logger = get_logger(__name__)

PlanMethod = Literal["schema", "tool", "text"]
"""How a plan is requested: `schema` by a reply schema, `tool` by a required call, `text` by the prompt alone."""

_TEMPERATURE = re.compile(r"temperature", re.IGNORECASE)
_ABOUT_CHOICES = re.compile(r"tool[_ ]?choice|toolchoice", re.IGNORECASE)
_KEPT_SCHEMAS = 8


class StructuredPlanner:
    """Requests structured plans (JSON objects with all calls of a wave), by the best method that the model accepts.

    The temperature is 0 unless configured. What the provider refuses (the temperature, a schema, a tool) is not sent in
    later requests, nor is a schema that it ignores.

    Args:
        model: The chat model; it is not modified.
        schema: JSON schema of a plan.
        tool: Name of the tool that receives a plan in the method `tool`.
        endpoint: The rules of the model's endpoint; found from the model by default.
    """

    def __init__(
        self, model: BaseChatModel, schema: dict[str, Any], tool: str, endpoint: Endpoint | None = None
    ) -> None:
        self.model, self.schema, self.tool = model, schema, tool
        self.endpoint = endpoint or endpoint_of(model, {})
        """The rules of the model's endpoint, including those learned from its errors."""
        self._schema_mode = SchemaMode(model)
        self._takes_tools = choose_tool_calling(model, "auto") == "native"
        self._refused: set[PlanMethod] = set()
        self._built: list[tuple[Sequence[dict[str, Any]], tuple[bool, Dispatch], dict[str, Any]]] = []
        """Tools of recent requests, whether their plans were bounded, when calls begin, and the resulting schema;
        newest last."""
        self._zero_temperature = True
        self._options: Mapping[str, Any] = {}

    def with_overrides(self, options: Mapping[str, Any]) -> StructuredPlanner:
        """Return a copy whose `options` override the configuration's; a value of None removes an option."""
        # Shallow: both share the rules that are learned of the endpoint.
        other = copy.copy(self)
        other._options = {**self._options, **options}
        return other

    def with_schema(self, schema: dict[str, Any]) -> StructuredPlanner:
        """Return a copy that asks for plans by another JSON schema."""
        other = copy.copy(self)
        other.schema, other._built = schema, []
        return other

    async def plan(
        self, request: Sequence[AnyMessage], settings: LoopConfig, *, offered: Sequence[dict[str, Any]] = ()
    ) -> AIMessage:
        """Request one plan and return the reply, unparsed. Its tokens do not enter the message stream.

        A plan that was cut off at the length limit is returned, even if the client raises an error for it. If the
        provider refuses the method, the temperature or another part of the request, or ignores the schema, later
        requests avoid that, and a refused request is sent again without it.

        Args:
            request: System prompt and history.
            settings: Model options, retries and time limits.
            offered: The tools that the system prompt describes, in OpenAI's function format.

        Raises:
            Exception: The provider's error, if it is not transient, or the retries are used up, and no simpler method
                or other form remains.
        """
        safe = with_traits(as_plans(sanitized_all(request)))
        attempt = LearningRequest(self.endpoint)
        while True:
            rules, zero_temperature = attempt.rules, self._zero_temperature
            method = self._method(settings, rules)
            bound = self._bound(method, settings, offered, rules, zero_temperature=zero_temperature)
            rendered = self._rendered(safe, rules, method, settings, offered)
            try:
                reply = await ask(bound.runnable, rendered, bound.options, settings)
            except Exception as error:
                if (cut := reply_of_length_error(error)) is not None:
                    return with_usage(cut, rendered, settings, bound.options.get("tools"))
                sent = bound.options, vars(bound.runnable), list(rendered)

                def changes_request(other: WireRules, sent: Any = sent, method: PlanMethod = method) -> bool:
                    changed = self._bound(method, settings, offered, other, zero_temperature=self._zero_temperature)
                    messages = list(self._rendered(safe, other, method, settings, offered))
                    return bool((changed.options, vars(changed.runnable), messages) != sent)

                if not attempt.learn_from(error, bound.options, changes_request) and not self._fall_back(
                    error, method, zero_temperature=zero_temperature and settings.temperature is None
                ):
                    raise
            else:
                attempt.confirm()
                # What the profile states is not given up for one reply.
                is_stated = "structured_output" in (self.model.profile or {})
                if method == "schema" and not is_stated and ignores_schema(reply):
                    self.endpoint.learn_ignored_schema()
                return with_usage(reply, rendered, settings, bound.options.get("tools"))

    def stop_sequences(self, settings: LoopConfig) -> list[str]:
        """Return the stop sequences of answers.

        Requests for plans do not send them, because they would cut the JSON.
        """
        return stop_sequences(with_options(settings, self._options))

    def _rendered(
        self,
        safe: SafeMessages,
        rules: WireRules,
        method: PlanMethod,
        settings: LoopConfig,
        offered: Sequence[dict[str, Any]],
    ) -> Sequence[BaseMessage]:
        """Convert a sanitized request to the messages that the endpoint accepts.

        Example plans are added if the plan is requested by schema from a local server and tools are offered.
        """
        if method == "schema" and offered and self._schema_mode.makes_grammar(rules):
            answers, calls_first = settings.finalize != "compose", settings.dispatch == "streamed"
            examples = example_plans(offered, answers=answers, calls_first=calls_first)
            safe = with_traits(with_examples(safe, examples, note=True))
        if not safe.traits & self.endpoint.concerned(rules):
            return safe
        keeps = keeps_provider_calls(self.model, {})
        return render(safe, rules, alias_of, self.endpoint.source, keeps_provider_calls=keeps)

    def _method(self, settings: LoopConfig, rules: WireRules) -> PlanMethod:
        """Return the best method that the provider has not refused: `schema`, `tool`, then `text`."""
        by_schema = self._schema_mode.is_sent_for_plans(settings.structured_output, rules)
        if by_schema and "schema" not in self._refused:
            return "schema"
        return "tool" if self._takes_tools and "tool" not in self._refused else "text"

    def _fall_back(self, error: Exception, method: PlanMethod, *, zero_temperature: bool) -> bool:
        """Stop using the temperature or the method of a request in later requests, if its error concerns that. Returns
        whether the request should be sent again in the simpler form.

        A method is also given up if the provider rejects tools, except for `text`, below which there is none; this is
        logged.

        Args:
            error: The error of the request.
            method: The method that was used.
            zero_temperature: Whether the request had the default temperature of 0.
        """
        if isinstance(error, NotImplementedError) or classify_model_error(error) == "tools_rejected":
            simpler = method != "text"
        elif classify_model_error(error) != "other":
            return False
        elif zero_temperature and _TEMPERATURE.search(failure_text(error)):
            self._zero_temperature = False
            return True
        else:
            about = {"schema": ABOUT_SCHEMAS, "tool": _ABOUT_CHOICES}.get(method)
            simpler = about is not None and about.search(failure_text(error)) is not None
        if simpler:
            logger.info("The model takes no plan by %s; a simpler method is used from now on", method)
            self._refused.add(method)
        return simpler

    def _bound(
        self,
        method: PlanMethod,
        settings: LoopConfig,
        offered: Sequence[dict[str, Any]],
        rules: WireRules,
        *,
        zero_temperature: bool,
    ) -> Binding:
        """Build the model with the options, and the schema or the tool, of a request for a plan.

        Stop sequences are left out, because they would cut the JSON. The temperature is 0 unless the settings have one
        or `zero_temperature` is False. Raises the errors of `bind_tools`.

        Args:
            method: How the plan is requested: by schema, by a tool, or in text.
            offered: The tools that plans may call.
            rules: The rules of the endpoint.
        """
        options = with_options(settings, self._options)
        options.pop("stop", None)  # it would cut the plan's JSON; the answer is cut afterwards
        if zero_temperature:
            options.setdefault("temperature", 0)
        for name in rules.left_out:
            options.pop(name, None)
        options = client_options(self.model, options).options
        model = shaped(self.model, rules, has_schema=method == "schema")
        if method == "schema":
            bounded = self._schema_mode.makes_grammar(rules)
            parameters = self._plan_schema(offered, settings.dispatch, bounded=bounded)
            options |= self._schema_mode.options(reply_form(parameters, "plan"), options)
        if method == "tool":
            parameters = self._plan_schema(offered, settings.dispatch)
            function = {"name": self.tool, "description": "Hand the plan over.", "parameters": parameters}
            tools = [{"type": "function", "function": function}]
            if (choice := self._choice(rules)) is not None:
                options["tool_choice"] = choice
            return unwrap_binding(bind_tools(model, tools, options))
        return Binding(model, options)

    def _choice(self, rules: WireRules) -> Any:
        """Return the tool choice that requires the plan's tool, by its name or else by requiring any tool; None if the
        endpoint or the model's class supports neither."""
        if not rules.choice_forced:
            return None
        named = choice_of(self.model, self.tool) if rules.choice_named else None
        return named or choice_of(self.model, "any")

    def _plan_schema(
        self, offered: Sequence[dict[str, Any]], dispatch: Dispatch, *, bounded: bool = False
    ) -> dict[str, Any]:
        """Return the JSON schema of plans that call these tools; without the tools' arguments if they are too many.

        The schema is cached.

        Args:
            offered: The tools.
            dispatch: When calls begin; with `streamed`, the list of calls is the first field.
            bounded: Whether texts and lists that a small model could continue without end are limited.
        """
        form = bounded, dispatch
        for tools, built_form, schema in self._built:
            if tools is offered and built_form == form:
                return schema
        try:
            schema = plan_schema(self.schema, offered if len(offered) <= MOST_TOOLS else (), bounded=bounded)
        except RecursionError:
            # Tools that are nested too deeply are described by the prompt alone.
            schema = self.schema
        if dispatch == "streamed" and "tools" in (fields := schema.get("properties", {})):
            # A model that is held to a schema writes the fields in this order.
            schema = {**schema, "properties": {"tools": fields["tools"], **fields}}
        self._built = [*self._built[1 - _KEPT_SCHEMAS :], (offered, form, schema)]
        return schema
