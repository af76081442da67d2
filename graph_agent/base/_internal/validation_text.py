"""Describes Pydantic's validation errors in one line for each fault: the field, its value and the fix."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, SecretBytes, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from graph_agent.base._internal.secrets import mask_named_secrets
from graph_agent.base._internal.text import excerpt
from graph_agent.base.errors import ConfigError, did_you_mean


class CheckedModel(BaseModel):
    """A frozen Pydantic model whose constructor raises `ConfigError` for invalid values, with the text of `explain`.

    Unknown fields are refused.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    _described_as: ClassVar[str] = "{}"
    """Description of the object in error messages; `{}` is replaced by the name of its class."""
    removed_fields: ClassVar[Mapping[str, str]] = {}
    """Field of an earlier version → what replaces it, as the end of the sentence `the field … was removed: …`."""

    # Type checkers derive the constructor's parameters from the fields, unless they see an `__init__`.
    if not TYPE_CHECKING:

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                where = self._described_as.format(type(self).__name__)
                raise ConfigError(explain(error, where, type(self))) from None


def explain(
    error: ValidationError,
    where: str,
    model: type[BaseModel] | None = None,
    *,
    known: Collection[str] = (),
    hidden: Collection[str] = (),
) -> str:
    """Return the text of a Pydantic validation error, one line for each fault; values of secret fields are left out.

    Args:
        error: The validation error.
        where: Name of the validated object, which begins each line.
        model: Class of the object, whose fields (and those of nested models) are suggested for unknown ones; None to
            suggest only `known`.
        known: Names to suggest in place of the fields of `model`.
        hidden: Names that are never suggested.
    """
    return "\n".join(f"{where}: {line}" for line in _lines(error, model, known, hidden))


def _lines(
    error: ValidationError, model: type[BaseModel] | None, known: Collection[str], hidden: Collection[str]
) -> Iterator[str]:
    """Yield the text of each fault in a validation error: the field, its value and the fix.

    A value is left out for a field that holds secrets, and masked in any other.

    Args:
        error: The validation error.
        model: Class of the object. For an unknown field, the text has what replaced it, or the known fields.
        known: Names to suggest in place of the fields of `model`.
        hidden: Names that are never suggested.
    """
    for fault in error.errors():
        path, given = fault["loc"], fault["input"]
        field = ".".join(map(str, path))
        # Pydantic puts these words before the text of a validator's own ValueError.
        text = fault["msg"].removeprefix("Value error, ").removesuffix(".")
        if fault["type"] == "extra_forbidden" and (instead := _removed_at(model, path)) is not None:
            yield f"the field {field!r} was removed: {instead}"
        elif fault["type"] == "extra_forbidden":
            names = [name for name in known or _known_at(model, path[:-1]) if name not in hidden]
            yield f"unknown field {field!r}; {did_you_mean(str(path[-1]), names)}"
        elif fault["type"] == "missing":
            yield f"the field {field!r} is missing."
        elif not field:
            yield f"{text}."
        elif _holds_secrets(_annotation_at(model, path)):
            yield f"{field}: {text}."
        else:
            shown = excerpt(mask_named_secrets(repr(given)))
            yield f"{field}={shown}: {text}.{_hint(fault['type'], field, given)}"


def _hint(kind: str, field: str, given: Any) -> str:
    """Return a sentence, with a leading space, about how to correct a value.

    There is one for a missing value, a text in place of a list, and a mapping that YAML has made of a text with a
    colon; empty for any other fault.

    Args:
        kind: Pydantic's type of the fault.
        field: Path of the field.
        given: The value.
    """
    if given is None or kind == "string_too_short":
        return " Leave it out, or give it a value."
    if kind in ("list_type", "tuple_type") and isinstance(given, str):
        return f" Write it as a list: [{given!r}]."
    if kind == "string_type" and isinstance(given, dict) and len(given) == 1:
        # E.g. `[my_tools: search]` in an agent file.
        ((name, value),) = given.items()
        if isinstance(value, str) and ":" in value and "model" not in field:
            return f" Write the name alone: {value!r}."
        if isinstance(name, str) and isinstance(value, str):
            return f" YAML reads a colon before a space as a mapping; write '{name}:{value}'."
    return ""


def _removed_at(model: type[BaseModel] | None, path: Sequence[int | str]) -> str | None:
    """Return what replaces a removed field at a path through nested models; None if the model never had such a
    field.
    """
    nested = _model_in(_annotation_at(model, path[:-1]))
    return nested.removed_fields.get(str(path[-1])) if nested is not None and issubclass(nested, CheckedModel) else None


def _known_at(model: type[BaseModel] | None, path: Iterable[int | str]) -> list[str]:
    """Return the field names, or their aliases, of the model at a path through nested models.

    Empty if there is none.
    """
    nested = _model_in(_annotation_at(model, path))
    return [] if nested is None else [field.alias or name for name, field in nested.model_fields.items()]


def _annotation_at(model: type[BaseModel] | None, path: Iterable[int | str]) -> Any:
    """Return the type annotation at a path through nested models; indexes, dict keys and union members are skipped."""
    annotation: Any = model
    for part in path:
        nested = _model_in(annotation)
        if nested is not None and (field := _field(nested, part)) is not None:
            annotation = field.annotation
    return annotation


def _field(model: type[BaseModel], name: int | str) -> FieldInfo | None:
    """Return a model's field by its name or alias; None if it has no such field."""
    by_name = model.model_fields.get(str(name))
    return by_name or next((field for field in model.model_fields.values() if field.alias == name), None)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the first Pydantic model in a type annotation, at any level; None if it has none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model_in(each)) is not None), None)


def _holds_secrets(annotation: Any) -> bool:
    """Whether a type annotation has a secret type of Pydantic, at any level."""
    return annotation in (SecretStr, SecretBytes) or any(_holds_secrets(each) for each in get_args(annotation))


def describe_fields(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Add the docstrings of a model's fields to its JSON schema as descriptions, in place; for `json_schema_extra`.

    An existing description is kept. Fields of a class without source, or of a nested class, get none.
    """
    properties = schema.get("properties", {})
    for name, text in field_docs(model).items():
        key = model.model_fields[name].alias or name
        if key in properties:
            properties[key].setdefault("description", text)


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Return field → docstring for a Pydantic model, including the fields of its base classes.

    Fields without a docstring are left out.
    """
    found: dict[str, str] = {}
    # Subclasses last, because their docstrings replace those of the same field.
    for owner in reversed(model.__mro__):
        found |= _docstrings(owner.__module__).get(owner.__qualname__, {}) if issubclass(owner, BaseModel) else {}
    return {name: text for name, text in found.items() if name in model.model_fields}


@cache
def _docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return class → field → docstring for the top-level classes of a module, read from its source.

    Empty without it.
    """
    file = getattr(sys.modules[module], "__file__", None)
    try:
        tree = ast.parse(Path(file or "").read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return {}
    return {node.name: _field_docstrings(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _field_docstrings(node: ast.ClassDef) -> dict[str, str]:
    """Return field → docstring for the class of a syntax tree: the string below each annotated field."""
    found: dict[str, str] = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            found[field.target.id] = cleandoc(below.value.value)
    return found
