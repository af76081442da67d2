"""Requests structured plans by provider schema, tool or plain text, and converts JSON schemas for providers."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.runnables import Runnable, RunnableBinding

from graph_agent.base._compat import uses_responses_api
from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base._internal.lru import BoundedCache
from graph_agent.base.settings.config import LoopConfig, StructuredOutput
from graph_agent.base.tool_names import alias_of
from graph_agent.base.usage import with_usage
from graph_agent.models.capabilities import choose_tool_calling
from graph_agent.models.errors import classify_model_error
from graph_agent.models.retry import ask
from graph_agent.models.sanitize import SafeMessages, sanitized_all, with_traits
from graph_agent.models.text_replies import MOST_TOOLS, ignores_schema
from graph_agent.models.wire.clients import bind_tools, choice_of, client_options, client_rules, schema_options
from graph_agent.models.wire.error_parts import failure_text
from graph_agent.models.wire.examples import example_plans, with_examples
from graph_agent.models.wire.learn import Endpoint, LearningRequest, endpoint_of
from graph_agent.models.wire.render import render
from graph_agent.models.wire.rules import WireRules
from graph_agent.models.wire.shape import shaped
from graph_agent.models.wire.text_form import as_plans
from graph_agent.models.wire.toolbox_schema import plan_schema


class Binding(NamedTuple):
    """A model, and the keyword arguments of each of its calls, such as `tools`."""

    runnable: Runnable[LanguageModelInput, AIMessage]
    options: dict[str, Any]


class ModelCall(NamedTuple):
    """A model call that is not sent yet: the model, its keyword arguments, and the messages in the form it accepts."""

    runnable: Runnable[LanguageModelInput, AIMessage]
    options: dict[str, Any]
    request: list[BaseMessage]
    bounded: bool = False
    """Whether the model applies time limits of its own, so that the caller must not set any."""


def with_options(settings: LoopConfig, further: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configured model options, overridden by `further`; options with the value None are removed."""
    options = {**dict(settings.model_options()), **further}
    return {name: value for name, value in options.items() if value is not None}


def stop_sequences(options: Mapping[str, Any]) -> list[str]:
    """Return the stop sequences in a call's options; empty if there are none."""
    given = options.get("stop")
    return [given] if isinstance(given, str) else list(given or ())


def unwrap_binding(runnable: Any) -> Binding:
    """Split a `RunnableBinding` into its model and options; any other runnable is returned with no options.

    Each call of a binding would merge its empty config into the run's, which costs time. A binding with a config or
    overridden methods is not split.
    """
    plain = isinstance(runnable, RunnableBinding) and type(runnable).ainvoke is RunnableBinding.ainvoke
    if not plain or runnable.config or runnable.config_factories:
        return Binding(runnable, {})
    return Binding(runnable.bound, dict(runnable.kwargs))


def _is_openai(model: BaseChatModel) -> bool:
    """Whether a model's class belongs to an API in OpenAI's format."""
    return client_rules(model).schema == "extra_body"


logger = get_logger(__name__)

PlanMethod = Literal["schema", "tool", "text"]

_TEMPERATURE = re.compile(r"temperature", re.IGNORECASE)
_ABOUT_CHOICES = re.compile(r"tool[_ ]?choice|toolchoice", re.IGNORECASE)
_KEPT_SCHEMAS = 8


class StructuredPlanner:
    """Requests structured plans from a chat model, by the best method it accepts: schema, tool or plain text.

    The temperature is 0 unless configured. What the provider refuses (the temperature, a schema, a tool), or a schema
    that it ignores, is not sent in later requests.

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
        self._built: list[tuple[Sequence[dict[str, Any]], bool, dict[str, Any]]] = []
        """Tools of recent requests, whether their plans were bounded, and the resulting schema; newest last."""
        self._zero_temperature = True
        self._options: Mapping[str, Any] = {}

    def with_overrides(self, options: Mapping[str, Any]) -> StructuredPlanner:
        """Return a copy whose `options` override the configuration's; a value of None removes an option."""
        other = copy.copy(self)
        other._options = {**self._options, **options}
        return other

    async def plan(
        self, request: Sequence[AnyMessage], settings: LoopConfig, *, offered: Sequence[dict[str, Any]] = ()
    ) -> AIMessage:
        """Request one plan and return the reply, unparsed; no tokens enter the message stream.

        A plan that was cut off at the length limit is returned, even if the client raises an error for it.

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
        if method == "schema" and offered and self._schema_mode.makes_grammar(rules):
            examples = example_plans(offered, answers=settings.finalize != "compose")
            safe = with_traits(with_examples(safe, examples, note=True))
        if not safe.traits & self.endpoint.concerned(rules):
            return safe
        return render(safe, rules, alias_of, self.endpoint.source)

    def _method(self, settings: LoopConfig, rules: WireRules) -> PlanMethod:
        by_schema = self._schema_mode.is_sent_for_plans(settings.structured_output, rules)
        if by_schema and "schema" not in self._refused:
            return "schema"
        return "tool" if self._takes_tools and "tool" not in self._refused else "text"

    def _fall_back(self, error: Exception, method: PlanMethod, *, zero_temperature: bool) -> bool:
        """If the error concerns the temperature or the method, stop using that and return True; else return False.

        `zero_temperature` is whether the request had the default temperature of 0.
        """
        if isinstance(error, NotImplementedError) or classify_model_error(error) == "tools_rejected":
            simpler = method != "text"
        elif classify_model_error(error) != "other":
            return False
        elif zero_temperature and _TEMPERATURE.search(failure_text(error)):
            self._zero_temperature = False
            return True
        else:
            about = {"schema": _ABOUT_SCHEMAS, "tool": _ABOUT_CHOICES}.get(method)
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
        options = with_options(settings, self._options)
        options.pop("stop", None)  # it would cut the plan's JSON; the answer is cut afterwards
        if zero_temperature:
            options.setdefault("temperature", 0)
        for name in rules.left_out:
            options.pop(name, None)
        options = client_options(self.model, options).options
        model = shaped(self.model, rules, has_schema=method == "schema")
        if method == "schema":
            parameters = self._plan_schema(offered, bounded=self._schema_mode.makes_grammar(rules))
            options |= self._schema_mode.options(reply_form(parameters, "plan"), options)
        if method == "tool":
            parameters = self._plan_schema(offered)
            function = {"name": self.tool, "description": "Hand the plan over.", "parameters": parameters}
            tools = [{"type": "function", "function": function}]
            if (choice := self._choice(rules)) is not None:
                options["tool_choice"] = choice
            return unwrap_binding(bind_tools(model, tools, options))
        return Binding(model, options)

    def _choice(self, rules: WireRules) -> Any:
        """Return the tool choice that requires the plan's tool; None if the endpoint supports no required tool."""
        if not rules.choice_forced:
            return None
        named = choice_of(self.model, self.tool) if rules.choice_named else None
        return named or choice_of(self.model, "any")

    def _plan_schema(self, offered: Sequence[dict[str, Any]], *, bounded: bool = False) -> dict[str, Any]:
        """Return the JSON schema of plans that call these tools; without the tools' arguments if they are too many.

        With ``bounded``, texts and lists that a small model could continue without end are limited. Cached.
        """
        for tools, is_bounded, schema in self._built:
            if tools is offered and is_bounded == bounded:
                return schema
        try:
            schema = plan_schema(self.schema, offered if len(offered) <= MOST_TOOLS else (), bounded=bounded)
        except RecursionError:
            # Tools that are nested too deeply are described by the prompt alone.
            schema = self.schema
        self._built = [*self._built[1 - _KEPT_SCHEMAS :], (offered, bounded, schema)]
        return schema


_ABOUT_SCHEMAS = re.compile(
    r"response_?format|json[_ ]?schema|structured[ _]outputs?|output_(?:format|config)|response.mime|guided|schema for"
    r"|grammar",
    re.IGNORECASE,
)

_KEPT = (
    frozenset({"title", "description", "type", "enum", "const", "pattern"})
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minLength", "maxLength", "minItems", "maxItems"}
)
"""Keywords that strict mode accepts. Others that only narrow values are dropped; the answer is validated again."""
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_NOT_STRICT = (
    frozenset({"allOf", "not", "if", "then", "else", "contains", "prefixItems", "unevaluatedItems"})
    | {"patternProperties", "propertyNames", "unevaluatedProperties"}
    | {"dependentRequired", "dependentSchemas", "dependencies"}
    | {"$dynamicRef", "$anchor", "$id"}
)
"""Keywords that cannot be dropped without changing the meaning, so that a schema with them has no strict form."""
_DEFINITIONS = ("$defs", "definitions")

_LOCAL = frozenset({"unknown", "ollama", "lm-studio", "llama.cpp", "vllm", "sglang"})
"""Servers that accept any JSON schema as a grammar, e.g. with `anyOf` at the root; includes unknown ones."""

WireFormat = dict[str, Any]
"""Value of OpenAI's option `response_format`, which LangChain's other clients convert."""


class SchemaMode:
    """Decides whether and in which form one model is sent a JSON schema, and remembers refused forms.

    A schema is sent in OpenAI's strict form if it has one, after a refusal unchanged, after another refusal not at all.
    """

    def __init__(self, model: BaseChatModel) -> None:
        self._model = model
        self._is_openai = _is_openai(model)
        self._can_send = client_rules(model).schema is not None
        self._forms: BoundedCache[str, list[WireFormat]] = BoundedCache()

    def is_sent(self, setting: StructuredOutput, rules: WireRules, *, with_tools: bool = False) -> bool:
        """Whether the JSON schema of a user's response format is sent to the provider.

        Args:
            setting: `structured_output` of the configuration. `prompt` never sends it, `schema` always if the class
                can; otherwise the model's profile and endpoint decide.
            rules: The rules of the model's endpoint.
            with_tools: Whether the request offers tools.
        """
        if setting == "prompt" or not self._can_send or (with_tools and not rules.schema_with_tools):
            return False
        if setting == "schema":
            return True
        profile = self._model.profile or {}
        if rules.json_schema is False or "structured_output" in profile:
            return rules.json_schema is not False and bool(profile.get("structured_output"))
        if rules.json_schema:
            return not with_tools
        # Nothing is known: an endpoint of OpenAI's API refuses an unknown option at no cost, or ignores it.
        return not with_tools and self._is_openai and not rules.is_known and not uses_responses_api(self._model, {})

    def is_sent_for_plans(self, setting: StructuredOutput, rules: WireRules) -> bool:
        """Whether the JSON schema of structured plans is sent; never to an endpoint that requires OpenAI's strict form.

        Unless the setting is `schema`, only clients of OpenAI's API get it.
        """
        is_sent = self.is_sent(setting, rules) and not rules.strict_schema
        return is_sent and (self._is_openai or setting == "schema")

    def is_sent_for_calls(self, setting: StructuredOutput, rules: WireRules) -> bool:
        """Whether the JSON schema of calls in text is sent; never to an endpoint that requires OpenAI's strict form.

        Unless the setting is `schema`, only servers that may be local get it: hosted providers refuse alternatives at
        the root of a schema.
        """
        is_sent = self.is_sent(setting, rules) and not rules.strict_schema
        return is_sent and (self.makes_grammar(rules) or setting == "schema")

    def makes_grammar(self, rules: WireRules) -> bool:
        """Whether the endpoint may be a local server, which turns any schema into a grammar."""
        return self._is_openai and rules.provider in _LOCAL and not rules.strict_schema

    def form(self, schema: dict[str, Any], rules: WireRules) -> WireFormat | None:
        """Return the response format that sends a schema; None if the provider has refused every form."""
        remaining = self._remaining(schema)
        return next((form for form in remaining if form["json_schema"]["strict"] or not rules.strict_schema), None)

    def options(self, form: WireFormat, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of a model call that enforce `form`; empty if the class cannot send it.

        Args:
            form: The result of the method `form`.
            given: The other keyword arguments of the call.
        """
        return schema_options(self._model, form, given) or {}

    def refused(self, schema: dict[str, Any], form: WireFormat, error: Exception) -> bool:
        """Whether an error refuses the form of a schema; the form is then not used again, which is logged."""
        if classify_model_error(error) not in ("other", "tools_rejected") or not _ABOUT_SCHEMAS.search(
            failure_text(error)
        ):
            return False
        remaining = self._remaining(schema)
        # Another session may have removed it already.
        if remaining and remaining[0] is form:
            remaining.pop(0)
            how = "asking for it in the prompt" if not remaining else "sending it unchanged"
            logger.info("The provider refuses the schema of the answer (%s); %s from now on", error, how)
        return True

    def _remaining(self, schema: dict[str, Any]) -> list[WireFormat]:
        return self._forms.get(json.dumps(schema, sort_keys=True), lambda: self._build_forms(schema))

    def _build_forms(self, schema: dict[str, Any]) -> list[WireFormat]:
        strict = strict_schema(schema) if _is_openai(self._model) else None
        forms = [_form(strict, strict=True)] if strict is not None else []
        return [*forms, _form(schema, strict=False)]


def reply_form(schema: dict[str, Any], name: str = "reply") -> WireFormat:
    """Return the response format that sends a schema under a name, not in strict form."""
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": False}}


def _form(schema: dict[str, Any], *, strict: bool) -> WireFormat:
    return {"type": "json_schema", "json_schema": {"name": "response", "schema": schema, "strict": strict}}


def reply_of_length_error(error: Exception) -> AIMessage | None:
    """Return the cut-off reply inside OpenAI's `LengthFinishReasonError`, with its usage; None for any other error."""
    completion = getattr(error, "completion", None)
    choices = getattr(completion, "choices", None)
    if type(error).__name__ != "LengthFinishReasonError" or not choices:
        return None
    usage = getattr(completion, "usage", None)
    used = [int(getattr(usage, name, None) or 0) for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    return AIMessage(
        getattr(choices[0].message, "content", None) or "",
        id=getattr(completion, "id", None),
        response_metadata={"finish_reason": "length"},
        usage_metadata=UsageMetadata(input_tokens=used[0], output_tokens=used[1], total_tokens=used[2])
        if usage is not None
        else None,
    )


class _NotStrictError(Exception):
    """The schema has no strict form."""


def strict_schema(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return an object schema in OpenAI's strict form; None if that would change its meaning.

    Strict form requires every field. An optional one must therefore allow an empty value: a default, null or an empty
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
