"""Pydantic validation errors as text: one line per fault, with the field, its value and the fix."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, get_args

from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from graph_agent._internal.redaction import mask_named_secrets
from graph_agent.errors import did_you_mean

_SHOWN_CHARS = 200


def explain(
    error: ValidationError,
    where: str,
    model: type[BaseModel] | None = None,
    *,
    known: Collection[str] = (),
    hidden: Collection[str] = (),
) -> str:
    """Format a validation error as one line per fault, without the values of secret fields.

    Args:
        error: The validation error.
        where: The validated object, e.g. `LoopConfig` or a file name.
        model: The validated model; its field names, and those of nested models, are suggested for unknown ones.
        known: Field names to suggest if there is no model.
        hidden: Field names never to suggest.
    """
    return "\n".join(f"{where}: {line}" for line in _lines(error, model, known, hidden))


def _lines(
    error: ValidationError, model: type[BaseModel] | None, known: Collection[str], hidden: Collection[str]
) -> Iterator[str]:
    for fault in error.errors():
        path, given = fault["loc"], fault["input"]
        field = ".".join(map(str, path))
        text = fault["msg"].removeprefix("Value error, ").removesuffix(".")
        if fault["type"] == "extra_forbidden":
            names = [name for name in known or _known_at(model, path[:-1]) if name not in hidden]
            yield f"unknown field {field!r}; {did_you_mean(str(path[-1]), names)}"
        elif fault["type"] == "missing":
            yield f"the field {field!r} is missing."
        elif not field:
            yield f"{text}."
        elif _holds_secrets(_annotation_at(model, path)):
            yield f"{field}: {text}."
        else:
            shown = mask_named_secrets(repr(given))
            shown = shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}…"
            yield f"{field}={shown}: {text}.{_hint(fault['type'], given)}"


def _hint(kind: str, given: Any) -> str:
    if given is None or kind == "string_too_short":
        return " Leave it out, or give it a value."
    if kind in ("list_type", "tuple_type") and isinstance(given, str):
        return f" Write it as a list: [{given!r}]."
    if kind == "string_type" and isinstance(given, dict) and len(given) == 1:
        # E.g. `[my_tools: search]` in an agent file.
        ((name, value),) = given.items()
        if isinstance(name, str) and isinstance(value, str):
            return f" YAML reads a colon before a space as a mapping; write '{name}:{value}'."
    return ""


def _known_at(model: type[BaseModel] | None, path: Iterable[int | str]) -> list[str]:
    nested = _model_in(_annotation_at(model, path))
    return [] if nested is None else [field.alias or name for name, field in nested.model_fields.items()]


def _annotation_at(model: type[BaseModel] | None, path: Iterable[int | str]) -> Any:
    """Return the annotation at a path; skips indexes, mapping keys and union members."""
    annotation: Any = model
    for part in path:
        nested = _model_in(annotation)
        if nested is not None and (field := _field(nested, part)) is not None:
            annotation = field.annotation
    return annotation


def _field(model: type[BaseModel], name: int | str) -> FieldInfo | None:
    by_name = model.model_fields.get(str(name))
    return by_name or next((field for field in model.model_fields.values() if field.alias == name), None)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model_in(each)) is not None), None)


def _holds_secrets(annotation: Any) -> bool:
    return annotation in (SecretStr, SecretBytes) or any(_holds_secrets(each) for each in get_args(annotation))
