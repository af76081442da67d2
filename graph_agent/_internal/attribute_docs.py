"""Descriptions of pydantic fields in JSON schemas, taken from the docstrings below the fields.

Pydantic's `use_attribute_docstrings` parses the source when a class is created, which takes longer than the rest of the
package's import.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import Any

from pydantic import BaseModel


def describe_fields(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Add the docstrings of a model's fields to its JSON schema; the model's `json_schema_extra`.

    Without the source of a class its fields have no description.
    """
    properties = schema.get("properties", {})
    for name, text in field_docs(model).items():
        key = model.model_fields[name].alias or name
        if key in properties:
            properties[key].setdefault("description", text)


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of a model's fields, those of its bases included."""
    found: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        found |= _docstrings(owner.__module__).get(owner.__qualname__, {}) if issubclass(owner, BaseModel) else {}
    return {name: text for name, text in found.items() if name in model.model_fields}


@cache
def _docstrings(module: str) -> dict[str, dict[str, str]]:
    """Class → field → docstring, of the top-level classes of a module."""
    file = getattr(sys.modules[module], "__file__", None)
    try:
        tree = ast.parse(Path(file or "").read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return {}
    return {node.name: _field_docstrings(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _field_docstrings(node: ast.ClassDef) -> dict[str, str]:
    found: dict[str, str] = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            found[field.target.id] = cleandoc(below.value.value)
    return found
