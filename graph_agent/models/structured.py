"""Requests structured plans by provider schema, tool or plain text, and converts JSON schemas for providers."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableBinding

from graph_agent._internal.failure_log import get_logger
from graph_agent._internal.lru import BoundedCache
from graph_agent.models.capabilities import choose_tool_calling
from graph_agent.models.errors import classify_model_error
from graph_agent.models.retry import ask
from graph_agent.models.sanitize import as_plans, sanitized_all
from graph_agent.models.wire.clients import bind_tools, choice_of, client_options, client_rules, schema_options
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


def openai_response_format(model: BaseChatModel, schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the option that enforces a JSON schema on an OpenAI model; None if its profile does not support one."""
    if not _is_openai(model) or not (model.profile or {}).get("structured_output"):
        return None
    # Strict schemas forbid objects with arbitrary keys, such as a tool's arguments.
    return {"type": "json_schema", "json_schema": {"name": "plan", "schema": schema, "strict": False}}


def _is_openai(model: BaseChatModel) -> bool:
    """Whether a model's class is one for APIs in OpenAI's format."""
    return client_rules(model).schema == "extra_body"


logger = get_logger(__name__)

PlanMethod = Literal["schema", "tool", "text"]

_TEMPERATURE = re.compile(r"temperature", re.IGNORECASE)
_SCHEMA = re.compile(r"response_format|json_schema|structured output|guided", re.IGNORECASE)


class StructuredPlanner:
    """Requests plans of a schema from a chat model; `tool` receives a plan in the method `tool`.

    The temperature is 0 unless configured. If a model refuses a temperature, later requests omit it. If a provider
    refuses a schema or a tool, later requests use the next simpler method.
    """

    def __init__(self, model: BaseChatModel, schema: dict[str, Any], tool: str) -> None:
        self.model, self.schema, self.tool = model, schema, tool
        self._response_format = openai_response_format(model, schema)
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
        """Request one plan, without tokens in the message stream; raise the error if no simpler method remains.

        `offered` are schemas of the tools in the system prompt, for subclasses that wrap the planner.
        """
        rendered = as_plans(sanitized_all(request))
        while True:
            method, zero_temperature = self._methods[0], self._zero_temperature
            bound = self._bound(method, settings, zero_temperature=zero_temperature)
            try:
                reply = await ask(bound.runnable, rendered, bound.options, settings)
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
        options = client_options(self.model, options).options
        if method == "schema" and self._response_format is not None:
            options |= schema_options(self.model, self._response_format, options) or {}
        if method == "tool":
            function = {"name": self.tool, "description": "Hand the plan over.", "parameters": self.schema}
            choice = choice_of(self.model, self.tool) or choice_of(self.model, "any")
            if choice is not None:
                options["tool_choice"] = choice
            return unwrap_binding(bind_tools(self.model, [{"type": "function", "function": function}], options))
        return Binding(self.model, options)


_ABOUT_SCHEMAS = re.compile(
    r"response_?format|json_?schema|structured[ _]outputs?|output_(?:format|config)|response.mime|guided|schema for",
    re.IGNORECASE,
)

_KEPT = (
    frozenset({"title", "description", "type", "enum", "const", "pattern"})
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minLength", "maxLength", "minItems", "maxItems"}
)
"""Keywords that strict mode accepts. Other keywords that only narrow are dropped; the answer is validated again."""
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_NOT_STRICT = (
    frozenset({"allOf", "not", "if", "then", "else", "contains", "prefixItems", "unevaluatedItems"})
    | {"patternProperties", "propertyNames", "unevaluatedProperties"}
    | {"dependentRequired", "dependentSchemas", "dependencies"}
    | {"$dynamicRef", "$anchor", "$id"}
)
"""Keywords that cannot be dropped without a change of meaning."""
_DEFINITIONS = ("$defs", "definitions")

ResponseFormat = dict[str, Any]
"""OpenAI's `response_format`, which LangChain's other clients convert."""


class SchemaMode:
    """The JSON-schema mode of one model.

    A schema is sent in OpenAI's strict form if it has one; after a refusal unchanged; after another refusal not at all.
    Refusals are remembered per schema.
    """

    def __init__(self, model: BaseChatModel) -> None:
        self._model = model
        self._is_known = bool((model.profile or {}).get("structured_output")) and client_rules(model).schema is not None
        self._forms: BoundedCache[str, list[ResponseFormat]] = BoundedCache()

    def form(self, schema: dict[str, Any]) -> ResponseFormat | None:
        """Return the form in which to send a schema; None if only the prompt can ask for it."""
        return next(iter(self._remaining(schema)), None)

    def options(self, form: ResponseFormat, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of the model call that enforce the schema of a `form`, given the call's other ones."""
        return schema_options(self._model, form, given) or {}

    def refused(self, schema: dict[str, Any], form: ResponseFormat, error: Exception) -> bool:
        """Whether an error refuses the form of a schema; if so, the form is not used again."""
        if classify_model_error(error) not in ("other", "tools_rejected") or not _ABOUT_SCHEMAS.search(str(error)):
            return False
        remaining = self._remaining(schema)
        # Another session may have removed it already.
        if remaining and remaining[0] is form:
            remaining.pop(0)
            how = "asking for it in the prompt" if not remaining else "sending it unchanged"
            logger.info("The provider refuses the schema of the answer (%s); %s from now on", error, how)
        return True

    def _remaining(self, schema: dict[str, Any]) -> list[ResponseFormat]:
        if not self._is_known:
            return []
        return self._forms.get(json.dumps(schema, sort_keys=True), lambda: self._build_forms(schema))

    def _build_forms(self, schema: dict[str, Any]) -> list[ResponseFormat]:
        strict = strict_schema(schema) if _is_openai(self._model) else None
        forms = [_form(strict, strict=True)] if strict is not None else []
        return [*forms, _form(schema, strict=False)]


def _form(schema: dict[str, Any], *, strict: bool) -> ResponseFormat:
    return {"type": "json_schema", "json_schema": {"name": "response", "schema": schema, "strict": strict}}


class _NotStrictError(Exception):
    """The schema has no strict form."""


def strict_schema(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema in strict form; None if that would change its meaning.

    An optional field is required in strict form, so its type must allow an empty value: a default, null, or an empty
    list.
    """
    if schema.get("type") != "object":
        return None
    try:
        strict = _strict(schema)
        for keyword in _DEFINITIONS:
            if keyword in schema:
                strict[keyword] = {name: _strict(inner) for name, inner in schema[keyword].items()}
    except (_NotStrictError, RecursionError):
        return None
    return strict


def _strict(node: Any) -> dict[str, Any]:
    if not isinstance(node, dict) or _NOT_STRICT & node.keys():
        raise _NotStrictError
    if "$ref" in node:
        # Strict mode allows no other keyword next to a reference.
        if not str(node["$ref"]).startswith("#"):
            raise _NotStrictError
        return {"$ref": node["$ref"]}
    strict = {keyword: value for keyword, value in node.items() if keyword in _KEPT}
    if node.get("format") in _FORMATS:
        strict["format"] = node["format"]
    choices = node.get("anyOf", node.get("oneOf"))
    if choices is not None:
        strict["anyOf"] = [_strict(choice) for choice in choices]
    elif not {"type", "enum", "const"} & node.keys():
        raise _NotStrictError
    if _is(node, "object"):
        strict |= _strict_object(node)
    if _is(node, "array"):
        strict["items"] = _strict(node.get("items"))
    return strict


def _strict_object(node: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = node.get("properties", {})
    if node.get("additionalProperties") not in (None, False) or (not fields and "additionalProperties" not in node):
        # The object allows arbitrary keys.
        raise _NotStrictError
    optional = [field for name, field in fields.items() if name not in node.get("required", ())]
    if not all(_may_be_empty(field) for field in optional):
        raise _NotStrictError
    return {
        "properties": {name: _strict(field) for name, field in fields.items()},
        "required": list(fields),
        "additionalProperties": False,
    }


def _may_be_empty(field: Any) -> bool:
    if not isinstance(field, dict):
        return False
    if "default" in field or _is(field, "null") or (_is(field, "array") and not field.get("minItems")):
        return True
    return any(isinstance(choice, dict) and _is(choice, "null") for choice in field.get("anyOf", ()))


def _is(node: dict[str, Any], kind: str) -> bool:
    types = node.get("type")
    return types == kind or (isinstance(types, list) and kind in types)
