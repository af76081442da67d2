"""Conversion of tool and model output to values that checkpoints, streams and providers accept."""

from __future__ import annotations

import json
import math
import re
from typing import Any

# A lone surrogate has no UTF-8 form; PostgreSQL and some providers refuse NUL.
_UNSAFE = re.compile("[\x00\ud800-\udfff]")
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
_DEEPEST = 200


_PIECE = 65_536
"""Characters per search: a search holds the GIL until it ends."""


def clean(text: str) -> str:
    """Replace each NUL and lone surrogate by U+FFFD."""
    if text.isascii() and "\x00" not in text:
        return text
    if len(text) <= _PIECE:
        return _UNSAFE.sub("\ufffd", text)
    return "".join(_UNSAFE.sub("\ufffd", text[at : at + _PIECE]) for at in range(0, len(text), _PIECE))


def find_lone_surrogate(value: Any, place: str = "") -> str | None:
    """Find the first string or key of a JSON value that holds a lone surrogate.

    Args:
        value: The value.
        place: Its path.

    Returns:
        The path, e.g. `params.message.parts.0.text`; for a key, the path of its object; None if there is none.

    Raises:
        RecursionError: If the value is nested too deeply.
    """
    if isinstance(value, str):
        return place if _has_lone_surrogate(value) else None
    if isinstance(value, dict) and any(map(_has_lone_surrogate, value)):
        return place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    inside = (find_lone_surrogate(item, f"{place}.{name}" if place else f"{name}") for name, item in items)
    return next((found for found in inside if found is not None), None)


def _has_lone_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


class NotFiniteError(ValueError):
    """A number is infinite or NaN where a finite one is required."""


def plain(value: Any, depth: int = 0, *, finite: bool = False) -> Any:
    """Convert a value to JSON types that every store accepts, with cleaned strings.

    Other values become their `str()`, as do numbers that a store cannot hold: integers beyond 64 bits, infinities, NaN.

    Args:
        value: Any value.
        depth: Number of enclosing levels.
        finite: Raise on infinities and NaN instead.

    Raises:
        ValueError: If the value is nested more than 200 levels deep, or its `str()` fails.
        NotFiniteError: On an infinity or NaN, with `finite`.
    """
    if isinstance(value, str):
        return clean(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if _SMALLEST <= value <= _LARGEST else _describe(value)
    if isinstance(value, float):
        if finite and not math.isfinite(value):
            raise NotFiniteError("a number is NaN, infinite or out of range; send a finite one")
        return value if math.isfinite(value) else _describe(value)
    if depth > _DEEPEST:
        raise ValueError(f"a value is nested more than {_DEEPEST} levels deep")
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1, finite=finite) for item in value]
    if isinstance(value, dict):
        return {
            clean(key) if isinstance(key, str) else _describe(key): plain(item, depth + 1, finite=finite)
            for key, item in value.items()
        }
    return _describe(value)


def as_text(value: Any) -> str:
    """Convert a value to text for a model: strings unchanged, other values as JSON."""
    if isinstance(value, str):
        return clean(value)
    return json.dumps(plain(value), ensure_ascii=False)


def text_of(content: Any) -> str:
    """Return the text of a message's content, with its blocks concatenated."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(block if isinstance(block, str) else str(block.get("text", "")) for block in blocks)


def _describe(value: Any) -> str:
    try:
        return clean(str(value))
    except Exception as error:
        raise ValueError(f"a {type(value).__name__} could not be turned into text: {error!r}") from error
