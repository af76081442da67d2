"""Converts the prompt of an editor to a message of the user."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Sequence
from typing import Any, TypeAlias

from acp import RequestError
from acp.schema import (
    AudioContentBlock,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceContentBlock,
    TextContentBlock,
    TextResourceContents,
)
from langchain_core.messages import HumanMessage

from graph_agent._internal.text import clean

PromptBlock: TypeAlias = (
    TextContentBlock | ImageContentBlock | AudioContentBlock | ResourceContentBlock | EmbeddedResourceContentBlock
)


def message_of(prompt: Sequence[PromptBlock]) -> HumanMessage:
    """Return the message of a prompt; links and the text of resources become a part of its text.

    Raises:
        RequestError: If the data of a block are no base64.
    """
    content: list[Any] = [_block(block) for block in prompt]
    if all(block["type"] == "text" for block in content):
        return HumanMessage("".join(block["text"] for block in content))
    return HumanMessage(content)


def _block(block: PromptBlock) -> dict[str, Any]:
    match block:
        case TextContentBlock():
            return _text(block.text)
        case ResourceContentBlock():
            return _text(f"[@{block.name}]({block.uri})")
        case ImageContentBlock() | AudioContentBlock():
            return _data(block.data, block.mime_type, block.type)
        case EmbeddedResourceContentBlock(resource=TextResourceContents(uri=uri, text=text)):
            return _text(f'\n<resource uri="{uri}">\n{text}\n</resource>\n')
        case EmbeddedResourceContentBlock(resource=resource):
            mime_type = resource.mime_type or "application/octet-stream"
            kind = mime_type.partition("/")[0]
            data = _data(resource.blob, mime_type, kind if kind in ("image", "audio") else "file")
            return {**data, "filename": clean(resource.uri.rpartition("/")[2])} if data["type"] == "file" else data


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": clean(text)}


def _data(base64: str, mime_type: str, kind: str) -> dict[str, Any]:
    try:
        b64decode(base64, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(-32602, f"The data of a block of type {kind} are no valid base64.") from None
    return {"type": kind, "base64": base64, "mime_type": clean(mime_type)}
