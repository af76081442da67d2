"""Recognizes media in content blocks, estimates their tokens, and names the media that an endpoint does not accept."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, Literal, get_args

from langchain_core.messages import BaseMessage
from langchain_core.messages.utils import count_tokens_approximately

Media = Literal["image", "pdf", "audio", "video", "file"]
"""Kinds of content other than text; `file` is any other document."""
ALL_MEDIA: frozenset[Media] = frozenset(get_args(Media))

_BY_TYPE: dict[str, Media] = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "audio": "audio",
    "input_audio": "audio",
    "audio_url": "audio",
    "video": "video",
    "video_url": "video",
    "document": "pdf",
}
_FILES = frozenset({"file", "input_file", "media", "document"})
"""Types of blocks whose kind is that of their MIME type."""
NAMES: dict[Media, str] = {
    "image": "an image",
    "pdf": "a PDF document",
    "audio": "an audio recording",
    "video": "a video",
    "file": "a file",
}
TOKENS_OF_MEDIUM = 1_600
"""Estimated tokens of one document, recording or video; its data, in Base64, would count as much more text."""


def estimated_tokens(messages: Sequence[BaseMessage], tools: Sequence[Any] | None = None) -> int:
    """Estimate the tokens of messages and tools: four characters per token, and a fixed number per medium."""
    texts = [_without_data(message) if isinstance(message.content, list) else message for message in messages]
    others = sum(len(whole.content) - len(text.content) for whole, text in zip(messages, texts, strict=True))
    return count_tokens_approximately(texts, tools=list(tools) if tools else None) + others * TOKENS_OF_MEDIUM


def _without_data(message: BaseMessage) -> BaseMessage:
    """Return a message without media that LangChain counts as text; it counts a fixed number for an image."""
    kept = [
        block
        for block in message.content
        if media_of(block) is None or (isinstance(block, dict) and block["type"] in ("image", "image_url"))
    ]
    return message if len(kept) == len(message.content) else message.model_copy(update={"content": kept})


def media_of(block: object) -> Media | None:
    """Return the kind of media in a content block; None for text and other blocks."""
    if not isinstance(block, dict) or not isinstance(kind := block.get("type"), str):
        return None
    if kind not in _FILES:
        return _BY_TYPE.get(kind)
    mime = mime_type_of(block)
    for prefix in ("image", "audio", "video"):
        if mime.startswith(f"{prefix}/"):
            return prefix
    # A document of Anthropic's API may be plain text.
    return "pdf" if mime == "application/pdf" or (kind == "document" and not mime) else "file"


def mime_type_of(block: dict[str, Any]) -> str:
    """Return the MIME type that a block states, in lower case; empty if it states none."""
    places = [block, *(inner for key in ("source", "file", "input_audio") if isinstance(inner := block.get(key), dict))]
    for place in places:
        for key in ("mime_type", "media_type", "mimeType"):
            if isinstance(mime := place.get(key), str) and mime:
                return mime.lower()
    data = data_of(block)
    return data[5:].partition(";")[0].lower() if data.startswith("data:") else ""


def data_of(block: dict[str, Any]) -> str:
    """Return the Base64 data of a block, or its URL; empty if it holds neither."""
    for key in ("base64", "data", "url", "file_data"):
        if isinstance(found := block.get(key), str) and found:
            return found
    for key in ("source", "image_url", "input_audio", "file", "audio_url", "video_url"):
        inner = block.get(key)
        if isinstance(inner, str):
            return inner
        if isinstance(inner, dict) and (found := data_of(inner)):
            return found
    return ""


def described(block: dict[str, Any]) -> str:
    """Describe a medium by kind, MIME type and size, such as `an image (image/png, 12 KB)`."""
    kind = media_of(block)
    data, mime = data_of(block), mime_type_of(block)
    details = [mime] if mime else []
    if data and not data.startswith(("http://", "https://")):
        size = len(data.rpartition(",")[2]) * 3 // 4
        details.append(f"{size:,} bytes" if size < 1000 else f"{size // 1000:,} KB")
    name = NAMES[kind] if kind else "content"
    return f"{name} ({', '.join(details)})" if details else name


def left_out(block: dict[str, Any]) -> dict[str, Any]:
    """Return the text block that names a medium which the endpoint does not accept."""
    text = described(block)
    return {
        "type": "text",
        "text": f"[{text[0].upper()}{text[1:]} is left out: the model's endpoint does not accept it.]",
    }


def only_accepted(content: Sequence[Any], accepted: Set[Media]) -> list[Any]:
    """Return content blocks with each medium that is not accepted replaced by a text that names it."""
    return [block if (kind := media_of(block)) is None or kind in accepted else left_out(block) for block in content]
