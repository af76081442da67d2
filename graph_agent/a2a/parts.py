"""Conversion of A2A parts: text and images for the model, files and data for programs."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from a2a.types import Part
from google.protobuf.json_format import MessageToDict

from graph_agent._internal.json_bounds import JsonBounds, JsonBoundsError, count_values
from graph_agent._internal.text import as_text, clean
from graph_agent.a2a.wire import restore_integers
from graph_agent.events.types import decode

MAX_IMAGES = 16


class Content(NamedTuple):
    """Converted content of a list of parts."""

    for_model: str | list[Any]
    """For the model: text, or LangChain content blocks where there are images."""
    artifacts: list[dict[str, Any]]
    """Files and data, as plain JSON.

    `{"type": "data", "data"}`, or `{"type": "file", "name", "mime_type"}` with its `base64` or its `url`.
    """
    value: Any = None
    """The data if the parts contain only one data part, and its JSON as text at most; None otherwise."""


def content_of(parts: Iterable[Part]) -> Content:
    """Convert parts to content for the model and artifacts for programs."""
    parts = list(parts)
    if (value := _only_data(parts)) is not None:
        return Content(as_text(value), [{"type": "data", "data": value}], value)
    texts: list[str] = []
    images: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    for part in parts:
        match part.WhichOneof("content"):
            case "text":
                texts.append(clean(part.text))
            case "data":
                data = restore_integers(MessageToDict(part.data))
                kept.append({"type": "data", "data": data})
                texts.append(as_text(data))
            case "raw" if part.media_type.startswith("image/") and len(images) < MAX_IMAGES:
                images.append({"type": "image", "base64": _encoded(part.raw), "mime_type": clean(part.media_type)})
            case "raw" if part.media_type.startswith("text/") or part.media_type == "application/json":
                texts.append(clean(part.raw.decode("utf-8", "replace")))
                kept.append(_file(part, base64=_encoded(part.raw)))
            case "raw":
                texts.append(f"[file {_label(part)}, {len(part.raw):,} bytes]")
                kept.append(_file(part, base64=_encoded(part.raw)))
            case "url":
                texts.append(f"[file {_label(part)} at {clean(part.url)}]")
                kept.append(_file(part, url=clean(part.url)))
            case _:
                pass
    text = "\n".join(texts)
    if not images:
        return Content(text, kept)
    return Content([*([{"type": "text", "text": text}] if text else []), *images], kept)


def text_of_parts(parts: Iterable[Part]) -> str:
    """Return the text of parts, with data as JSON and without images."""
    content = content_of(parts).for_model
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


def _only_data(parts: Sequence[Part]) -> Any:
    """Return the data of parts that contain nothing else; None for other parts."""
    kinds = [part.WhichOneof("content") for part in parts]
    if kinds.count("data") != 1 or not set(kinds) <= {"data", "text"}:
        return None
    data = restore_integers(MessageToDict(parts[kinds.index("data")].data))
    texts = [part.text for part in parts if part.text.strip()]
    return data if all(_is_json_of(text, data) for text in texts) else None


def _is_json_of(text: str, data: Any) -> bool:
    """Whether a text is the JSON of `data`; a text with more values is not parsed."""
    encoded = json.dumps(data)
    try:
        count_values(text, JsonBounds(count_values(encoded, JsonBounds(len(encoded), len(encoded))), len(encoded)))
    except JsonBoundsError:
        return False
    return decode(text) == (data,)


def _file(part: Part, **content: str) -> dict[str, Any]:
    return {"type": "file", "name": clean(part.filename), "mime_type": clean(part.media_type), **content}


def _label(part: Part) -> str:
    return clean(", ".join(text for text in (part.filename or "without a name", part.media_type) if text))


def _encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")
