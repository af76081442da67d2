"""A JSON schema in the form that OpenAI's strict mode takes: every field is required, and no others are allowed."""

from __future__ import annotations

from typing import Any

_KEPT = (
    frozenset({"title", "description", "type", "enum", "const", "pattern"})
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minLength", "maxLength", "minItems", "maxItems"}
)
"""Keywords that strict mode takes as they are. Others that only narrow are left out; the answer is checked again."""
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_NOT_STRICT = (
    frozenset({"allOf", "not", "if", "then", "else", "contains", "prefixItems", "unevaluatedItems"})
    | {"patternProperties", "propertyNames", "unevaluatedProperties"}
    | {"dependentRequired", "dependentSchemas", "dependencies"}
    | {"$dynamicRef", "$anchor", "$id"}
)
"""Keywords without which a schema means something else."""
_DEFINITIONS = ("$defs", "definitions")


class _NotStrictError(Exception):
    """The schema cannot be put into the form that strict mode takes."""


def strict_schema(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema in strict form; None where that would ask for something else.

    A field that need not be there is required in strict form, so that its type must have a way to be empty: a default,
    null, or an empty list.

    Args:
        schema: A valid JSON schema.
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
        # Strict mode takes no keyword beside a reference.
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
        # Its keys are free.
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
