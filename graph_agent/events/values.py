"""The value of a call's result as plain JSON, and the event fields that store it.

An event's `content` is the whole output as text or content blocks. The value is stored separately only if the content
does not determine it:

- no further field: the value is the text, or the list of blocks if one of them is not text;
- `encoding: "json"`: the value is the JSON in the text;
- `value`: the value itself, if a server returned structured content that differs from its text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from graph_agent._internal.text import clean, plain, text_of


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


def stored_value(content: str | list[Any], value: Any) -> dict[str, Any]:
    """Return the event fields that store a value; empty if the content is the value.

    Args:
        content: The event's content.
        value: Plain JSON.
    """
    if isinstance(value, str) and is_text(content) and value == text_of(content):
        return {}
    return {"encoding": "json"} if _holds(content, value) else {"value": value}


def structured_content(content: str | list[Any], artifact: Any) -> dict[str, Any]:
    """Return the event fields that store the structured content of an MCP tool's result; empty without any.

    MCP's SDKs wrap a value that is not an object as `{"result": value}`, with the bare value as text; the bare value is
    then stored.

    Args:
        content: The content of the tool's message.
        artifact: The artifact of the tool's message, plain JSON.
    """
    value = artifact.get("structured_content") if isinstance(artifact, dict) else None
    if value is None:
        return {}
    if isinstance(value, dict) and list(value) == ["result"] and not _holds(content, value):
        value = value["result"]
    return stored_value(content, value)


def value_of(entry: Mapping[str, Any]) -> Any:
    """Return the value of a result event (`tool_result` or `delegation_response`) as plain JSON."""
    if "value" in entry:
        return entry["value"]
    content = entry["content"]
    if entry.get("encoding") == "json" and (decoded := decode(text_of(content))) is not None:
        return decoded[0]
    return text_of(content) if is_text(content) else content


def decode(text: str) -> tuple[Any] | None:
    """Return the JSON value in a text, as a 1-tuple; None if it is not JSON or has a number that is not finite."""
    try:
        return (plain(json.loads(text), finite=True),)
    except (ValueError, RecursionError):
        return None


def is_text(content: str | list[Any]) -> bool:
    """Whether a content is only text: a string, or blocks of text."""
    return isinstance(content, str) or all(isinstance(block, str) or block.get("type") == "text" for block in content)


def _holds(content: str | list[Any], value: Any) -> bool:
    """Whether the text of a content is the JSON of a value."""
    decoded = decode(text_of(content))
    # Compared as JSON: in Python 1, 1.0 and True are equal.
    return decoded is not None and _canonical(decoded[0]) == _canonical(value)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
