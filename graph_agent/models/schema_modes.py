"""Chooses the form in which a model is sent a JSON schema, and converts schemas to OpenAI's strict form."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.messages.ai import UsageMetadata

from graph_agent.base._compat import uses_responses_api
from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base._internal.lru import BoundedCache
from graph_agent.base.settings.config import StructuredOutput
from graph_agent.models.binding import is_openai
from graph_agent.models.errors import classify_model_error
from graph_agent.models.wire.clients import client_rules, schema_options
from graph_agent.models.wire.error_parts import failure_text
from graph_agent.models.wire.rules import WireRules

logger = get_logger("graph_agent.models.structured")

ABOUT_SCHEMAS = re.compile(
    r"response_?format|json[_ ]?schema|structured[ _]outputs?|output_(?:format|config)|response.mime|guided|schema for"
    r"|grammar",
    re.IGNORECASE,
)
"""Matches the text of an error that concerns a reply schema."""

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
    """Decides whether, and in which form, a JSON schema is sent to one model, and remembers refused forms.

    A schema is sent in OpenAI's strict form if it has one; after a refusal unchanged; after another refusal not at all.
    """

    def __init__(self, model: BaseChatModel) -> None:
        self._model = model
        self.is_openai = is_openai(model)
        self._can_send = client_rules(model).schema is not None
        self._forms: BoundedCache[str, list[WireFormat]] = BoundedCache()

    def is_sent(self, setting: StructuredOutput, rules: WireRules, *, with_tools: bool = False) -> bool:
        """Whether the JSON schema of a user's response format is sent to the provider. The first rule that applies
        decides:

        - never with the setting `prompt`, for a class that cannot send it, or together with tools that the endpoint
          does not accept with it
        - always with the setting `schema`
        - not after a refusal by the endpoint, and otherwise as the model's profile states
        - to an endpoint that supports it, and to an unknown endpoint of OpenAI's chat API: if the request has no tools

        Args:
            setting: `structured_output` of the configuration.
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
        return not with_tools and self.is_openai and not rules.is_known and not uses_responses_api(self._model, {})

    def is_sent_for_plans(self, setting: StructuredOutput, rules: WireRules) -> bool:
        """Whether the JSON schema of structured plans is sent to the provider.

        Only where `is_sent` allows a schema, and never to an endpoint that requires OpenAI's strict form. Unless the
        setting is `schema`, only to models whose client has OpenAI's API.
        """
        is_sent = self.is_sent(setting, rules) and not rules.strict_schema
        return is_sent and (self.is_openai or setting == "schema")

    def is_sent_for_calls(self, setting: StructuredOutput, rules: WireRules) -> bool:
        """Whether the JSON schema of replies with calls in text is sent to the provider.

        Never to an endpoint that requires OpenAI's strict form. Unless the setting is `schema`, only to servers that
        may be local: hosted providers refuse alternatives at the root of a schema.
        """
        is_sent = self.is_sent(setting, rules) and not rules.strict_schema
        return is_sent and (self.makes_grammar(rules) or setting == "schema")

    def makes_grammar(self, rules: WireRules) -> bool:
        """Whether the endpoint may be a local server, which turns any schema into a grammar."""
        return self.is_openai and rules.provider in _LOCAL and not rules.strict_schema

    def form(self, schema: dict[str, Any], rules: WireRules) -> WireFormat | None:
        """Return the `response_format` that sends a schema, in the best form not refused yet; only the strict form if
        the endpoint requires it.

        None if every form was refused.
        """
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
        """Whether an error refuses the form in which a schema was sent. If so, the form is not used again, which is
        logged.

        Args:
            schema: The schema.
            form: The form that was sent.
            error: The error of the request; only one about schemas, of kind `other` or `tools_rejected`, counts.
        """
        if classify_model_error(error) not in ("other", "tools_rejected") or not ABOUT_SCHEMAS.search(
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
        """Return the forms of a schema that were not refused yet, best first.

        A cached list, which `refused` changes.
        """
        return self._forms.get(json.dumps(schema, sort_keys=True), lambda: self._build_forms(schema))

    def _build_forms(self, schema: dict[str, Any]) -> list[WireFormat]:
        """Return the forms in which a schema can be sent, the first to be tried first: strict, if possible, and
        plain."""
        strict = strict_schema(schema) if is_openai(self._model) else None
        forms = [_form(strict, strict=True)] if strict is not None else []
        return [*forms, _form(schema, strict=False)]


def reply_form(schema: dict[str, Any], name: str = "reply") -> WireFormat:
    """Return a `response_format` with a schema, not in strict form."""
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": False}}


def _form(schema: dict[str, Any], *, strict: bool) -> WireFormat:
    """Return a schema, unchanged and under the name `response`, as the value of `response_format` in OpenAI's API.

    With `strict`, it must be in the strict form already.
    """
    return {"type": "json_schema", "json_schema": {"name": "response", "schema": schema, "strict": strict}}


def reply_of_length_error(error: Exception) -> AIMessage | None:
    """Return the cut-off reply that OpenAI's `LengthFinishReasonError` contains, with its usage.

    None for any other error.
    """
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
    """Raised if a schema has no strict form."""


def strict_schema(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return an object schema in OpenAI's strict form; None if it is no object schema, or if a part of it has no strict
    form (see `_strict`).

    Strict form requires every field. An optional one must therefore allow an empty value: a default, null or an empty
    list. The definitions under `$defs` and `definitions` are converted, too.
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
    """Return the strict form of a part of a schema; raise `_NotStrictError` if it has none.

    - A local reference stays, without its other keywords. The alternatives of `anyOf`, else of `oneOf`, become
      `anyOf`. The keywords in `_KEPT` and the formats in `_FORMATS` stay, and all others are dropped, such as `default`
      and `uniqueItems`.
    - A part has no strict form if it has a keyword of `_NOT_STRICT`, such as `allOf`; if its reference is not local; if
      it has neither a type, alternatives nor fixed values; if it is an array without `items`, or an object that
      `_strict_object` refuses; or if a part inside it has none.
    """
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
    """Return the keywords of an object's strict form, in which all properties are required; raise `_NotStrictError` if
    the object allows arbitrary keys, or has an optional property that cannot be empty.
    """
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
    """Whether an optional field can be required instead, because it allows a default, null or an empty list."""
    if not isinstance(field, dict):
        return False
    if "default" in field or _is(field, "null") or (_is(field, "array") and not field.get("minItems")):
        return True
    return any(isinstance(choice, dict) and _is(choice, "null") for choice in field.get("anyOf", ()))


def _is(node: dict[str, Any], kind: str) -> bool:
    """Whether a schema's `type` is, or includes, a kind."""
    types = node.get("type")
    return types == kind or (isinstance(types, list) and kind in types)
