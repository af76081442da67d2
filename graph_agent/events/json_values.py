"""Conversion of a tool's return value to JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from graph_agent._internal.text import clean


def as_value(returned: Any) -> Any:
    """Convert a tool's return value to JSON types.

    Pydantic models and dataclasses become objects, also inside lists and dicts; types without a JSON form become
    their `str()`.

    Raises:
        ValueError: For a value that contains itself, or is nested too deeply.
    """
    if isinstance(returned, Iterator):
        # Reading an iterator would consume it, and need not end.
        return str(returned)
    try:
        return to_jsonable_python(returned, by_alias=True, serialize_unknown=True)
    except PydanticSerializationError:
        # Bytes that are not UTF-8.
        return to_jsonable_python(returned, by_alias=True, serialize_unknown=True, bytes_mode="base64")


def as_json(returned: Any) -> str | None:
    """Convert a tool's return value to JSON text; None for a scalar without a JSON form, which becomes its `str()`."""
    try:
        value = as_value(returned)
    except ValueError:
        return None
    return None if isinstance(value, str) else clean(json.dumps(value, ensure_ascii=False))
