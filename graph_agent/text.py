"""Making anything a tool or a model may produce fit for a checkpoint, a stream and a provider."""

from __future__ import annotations

import json
import re
from typing import Any

# A lone surrogate has no UTF-8 form; NUL is refused by Postgres and by some providers.
_UNSAFE = re.compile("[\x00\ud800-\udfff]")


def clean(text: str) -> str:
    """The text with each NUL and lone surrogate replaced by U+FFFD."""
    return text if text.isascii() and "\x00" not in text else _UNSAFE.sub("\ufffd", text)


def plain(value: Any) -> Any:
    """The value as plain JSON types, its strings cleaned; what JSON cannot say becomes its `str()`.

    Raises:
        ValueError: On a value that contains itself, or one whose `str()` fails.
    """
    if isinstance(value, str):
        return clean(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {clean(key) if isinstance(key, str) else _describe(key): plain(item) for key, item in value.items()}
    return _describe(value)


def as_text(value: Any) -> str:
    """The value as text a model can read: strings as they are, all else as JSON."""
    if isinstance(value, str):
        return clean(value)
    return json.dumps(plain(value), ensure_ascii=False)


def text_of(content: Any) -> str:
    """The text in a message's content, its blocks run together."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(block if isinstance(block, str) else str(block.get("text", "")) for block in blocks)


def _describe(value: Any) -> str:
    try:
        return clean(str(value))
    except Exception as error:
        raise ValueError(f"a {type(value).__name__} could not be turned into text: {error!r}") from error
