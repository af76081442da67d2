"""What a remote agent's parts come to: text and images for the model, files and data for programs."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from a2a.types import Artifact, Message, Part, TaskArtifactUpdateEvent
from google.protobuf.json_format import MessageToDict

from graph_agent._internal.json_bounds import JsonBounds, JsonBoundsError, count_values
from graph_agent._internal.text import as_text, clean
from graph_agent.a2a.wire import whole
from graph_agent.events.values import decode

MOST_IMAGES = 16


class Content(NamedTuple):
    """What some parts hold."""

    shown: str | list[Any]
    """For the model: text, or LangChain content blocks where there are images."""
    kept: list[dict[str, Any]]
    """Files and data, as plain JSON.

    `{"type": "data", "data"}`, or `{"type": "file", "name", "mime_type"}` with its `base64` or its `url`.
    """
    value: Any = None
    """The data, where the parts hold that data alone, or its JSON as text too; None otherwise."""


def content_of(parts: Iterable[Part]) -> Content:
    """Turn parts into what a model can read, and what is kept for programs."""
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
                data = whole(MessageToDict(part.data))
                kept.append({"type": "data", "data": data})
                texts.append(as_text(data))
            case "raw" if part.media_type.startswith("image/") and len(images) < MOST_IMAGES:
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


def text_of_message(message: Message) -> str:
    """The text of a message; data stands there as JSON."""
    shown = content_of(message.parts).shown
    return shown if isinstance(shown, str) else "".join(block.get("text", "") for block in shown)


class Artifacts:
    """A task's artifacts, as its updates build them."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Part]] = {}

    def set(self, artifacts: Sequence[Artifact]) -> None:
        """Take a whole task's artifacts for what there is."""
        self._parts = {artifact.artifact_id: list(artifact.parts) for artifact in artifacts}

    def add(self, update: TaskArtifactUpdateEvent) -> None:
        """Take one update in; an addition to text goes on where it stopped."""
        new = list(update.artifact.parts)
        known = self._parts.get(update.artifact.artifact_id)
        if not update.append or known is None:
            self._parts[update.artifact.artifact_id] = new
            return
        for part in new:
            if known and part.WhichOneof("content") == known[-1].WhichOneof("content") == "text":
                known[-1] = Part(text=known[-1].text + part.text)
            else:
                known.append(part)

    def parts(self) -> list[Part]:
        """Every part, in order."""
        return [part for parts in self._parts.values() for part in parts]


def _only_data(parts: Sequence[Part]) -> Any:
    """The data in some parts that hold nothing else; None for any others."""
    kinds = [part.WhichOneof("content") for part in parts]
    if kinds.count("data") != 1 or not set(kinds) <= {"data", "text"}:
        return None
    data = whole(MessageToDict(parts[kinds.index("data")].data))
    texts = [part.text for part in parts if part.text.strip()]
    return data if all(_holds(text, data) for text in texts) else None


def _holds(text: str, data: Any) -> bool:
    """Whether a text is the JSON of some data; a text with more values is not decoded."""
    written = json.dumps(data)
    try:
        count_values(text, JsonBounds(count_values(written, JsonBounds(len(written), len(written))), len(written)))
    except JsonBoundsError:
        return False
    return decode(text) == (data,)


def _file(part: Part, **where: str) -> dict[str, Any]:
    return {"type": "file", "name": clean(part.filename), "mime_type": clean(part.media_type), **where}


def _label(part: Part) -> str:
    return clean(", ".join(text for text in (part.filename or "without a name", part.media_type) if text))


def _encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")
