"""Recognizes media in content blocks, estimates their tokens, and replaces media that an endpoint does not accept."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, Literal, get_args

from langchain_core.messages import BaseMessage
from langchain_core.messages.utils import count_tokens_approximately

Media = Literal["image", "pdf", "audio", "video", "file"]
"""Kind of content other than text; `file` is any document that is not a PDF."""
ALL_MEDIA: frozenset[Media] = frozenset(get_args(Media))

_BY_TYPE: dict[str, Media] = {
    **dict.fromkeys(("image", "image_url", "input_image"), "image"),
    **dict.fromkeys(("audio", "input_audio", "audio_url"), "audio"),
    **dict.fromkeys(("video", "video_url"), "video"),
    "document": "pdf",
}
_FILES = frozenset({"file", "input_file", "media", "document"})
"""Types of blocks whose kind depends on their MIME type."""
NAMES: dict[Media, str] = {
    "image": "an image",
    "pdf": "a PDF document",
    "audio": "an audio recording",
    "video": "a video",
    "file": "a file",
}
"""Kind of medium → its name in descriptions for the model, with an article."""
TOKENS_OF_MEDIUM = 1_600
"""Estimated tokens of one document, recording or video. As text, its Base64 data would count far more."""


def estimated_tokens(messages: Sequence[BaseMessage], tools: Sequence[Any] | None = None) -> int:
    """Estimate the tokens of messages and tools: about four characters a token, and a fixed number for each medium.

    `tools` are the tools that are offered with the messages; None if there are none.
    """
    texts = [_without_data(message) if isinstance(message.content, list) else message for message in messages]
    others = sum(len(whole.content) - len(text.content) for whole, text in zip(messages, texts, strict=True))
    return count_tokens_approximately(texts, tools=list(tools) if tools else None) + others * TOKENS_OF_MEDIUM


def _without_data(message: BaseMessage) -> BaseMessage:
    """Return a message without media that LangChain's estimate would count as text; the same object if it has none.

    Images stay, because LangChain counts a fixed number for each.
    """
    kept = [
        block
        for block in message.content
        if media_of(block) is None or (isinstance(block, dict) and block["type"] in ("image", "image_url"))
    ]
    return message if len(kept) == len(message.content) else message.model_copy(update={"content": kept})


def media_of(block: object) -> Media | None:
    """Return the kind of medium that a content block holds; None for text and for blocks of other types.

    The kind of a block with a file depends on its MIME type: `image`, `audio`, `video` or `pdf`, and `file` for any
    other. A `document` without a MIME type is a `pdf`.
    """
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
    """Return the MIME type that a block, the object inside it, or else its data URL has, in lower case; empty without
    one.
    """
    places = [block, *(inner for key in ("source", "file", "input_audio") if isinstance(inner := block.get(key), dict))]
    for place in places:
        for key in ("mime_type", "media_type", "mimeType"):
            if isinstance(mime := place.get(key), str) and mime:
                return mime.lower()
    data = data_of(block)
    return data[5:].partition(";")[0].lower() if data.startswith("data:") else ""


def data_of(block: dict[str, Any]) -> str:
    """Return the Base64 data or the URL that a block, or else an object inside it, has; empty if there is neither."""
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
    """Return a description of the medium in a block, with MIME type and size if known, e.g. `an image (image/png, 12
    KB)`."""
    kind = media_of(block)
    data, mime = data_of(block), mime_type_of(block)
    details = [mime] if mime else []
    if data and not data.startswith(("http://", "https://")):
        # Base64 has four characters for three bytes.
        size = len(data.rpartition(",")[2]) * 3 // 4
        details.append(f"{size:,} bytes" if size < 1000 else f"{size // 1000:,} KB")
    name = NAMES[kind] if kind else "content"
    return f"{name} ({', '.join(details)})" if details else name


def left_out(block: dict[str, Any]) -> dict[str, Any]:
    """Return a text block for the model in place of a medium that its endpoint does not accept.

    It describes the medium.
    """
    text = described(block)
    return {
        "type": "text",
        "text": f"[{text[0].upper()}{text[1:]} is left out: the model's endpoint does not accept it.]",
    }


def only_accepted(content: Sequence[Any], accepted: Set[Media]) -> list[Any]:
    """Return content blocks with each medium of a kind not in `accepted` replaced by a text that describes it."""
    return [block if (kind := media_of(block)) is None or kind in accepted else left_out(block) for block in content]
