"""Converts a JSON schema for models whose provider enforces it.

OpenAI's strict mode requires every field and allows no others, so a schema is converted to that form if possible.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from langchain_core.language_models import BaseChatModel

from graph_agent._compat import uses_responses_api
from graph_agent._internal.failure_log import get_logger
from graph_agent._internal.lru import BoundedCache
from graph_agent.models.errors import classify_model_error

logger = get_logger(__name__)

_OPENAI = frozenset({"openai-chat", "azure-openai-chat"})
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
        self._is_openai = model._llm_type in _OPENAI
        self._is_known = bool((model.profile or {}).get("structured_output"))
        self._forms: BoundedCache[str, list[ResponseFormat]] = BoundedCache()

    def form(self, schema: dict[str, Any]) -> ResponseFormat | None:
        """Return the form in which to send a schema; None if only the prompt can ask for it."""
        return next(iter(self._remaining(schema)), None)

    def options(self, form: ResponseFormat, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of the model call that enforce a schema.

        Args:
            form: The result of `form`.
            given: The call's other options, including its tools.
        """
        if not self._is_openai or uses_responses_api(self._model, given):
            return {"response_format": form}
        # With the `response_format` option OpenAI's client refuses tools that are not strict, and raises on a reply
        # that was cut off.
        own = given.get("extra_body") or getattr(self._model, "extra_body", None) or {}
        return {"extra_body": {**own, "response_format": form}}

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
        strict = strict_schema(schema) if self._is_openai else None
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
