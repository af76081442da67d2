"""Descriptions of pydantic fields, taken from the docstrings below them.

Pydantic's `use_attribute_docstrings` resolves the path of every loaded module to find a class's source. That takes
longer than the rest of the configuration's import.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

M = TypeVar("M", bound=BaseModel)


def with_field_docs(model: type[M]) -> type[M]:
    """Set the descriptions of a model's fields from their docstrings; a class decorator.

    The model must set `defer_build`, so that its schema is built afterwards. Without the module's source the fields
    remain unchanged.
    """
    for name, text in _docstrings(model.__module__).get(model.__qualname__, {}).items():
        if name in model.model_fields and model.model_fields[name].description is None:
            model.model_fields[name].description = text
    return model


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
