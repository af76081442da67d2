"""Converts the content blocks of Anthropic's Messages API to LangChain's messages.

The tools that Anthropic's servers run themselves, such as web search, do not exist here. Their calls and results in a
conversation that began elsewhere become text of the assistant's message, so that the model still has what they found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall, ToolMessage
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from graph_agent.interfaces.server.chat import schemas
from graph_agent.interfaces.server.chat.content_blocks import document_block, image, simplify_blocks
from graph_agent.interfaces.server.problems import InvalidRequestError

_GIVEN = ("text", "image", "document", "search_result", "tool_reference")
"""Types of blocks that are content of a user message or of the result of a call."""
_WITHOUT_EFFECT = (
    *("tool_use", "tool_result", "thinking", "redacted_thinking"),
    *("tool_addition", "mcp_tool_listing", "fallback"),
)
"""Further types that are accepted. In a message whose role does not use them, they are ignored."""
_UNSUPPORTED = {
    "container_upload": "files are not stored here",
    "tool_removal": "leave the tool out of 'tools' instead",
}
"""Types that are refused → what to do instead, for the error."""
_KNOWN = {*_GIVEN, *_WITHOUT_EFFECT, *_UNSUPPORTED, "compaction"}
_OF_PROVIDERS = ("_use", "_result", "_error", "_output")
"""Suffixes of the types of blocks about tools that Anthropic's servers run: calls, results, and the parts of
results.
"""
_EXPECTED = f"{', '.join(map(repr, (*_GIVEN, *_WITHOUT_EFFECT[:4])))}, or the call or result of a provider's tool"


def _known_type(name: str) -> str:
    """Return the type of a block unchanged; raise pydantic's error if this server does not know the type.

    Types of the tools that Anthropic's servers run are known by their ending.
    """
    if name not in _KNOWN and not name.endswith(_OF_PROVIDERS):
        # The error names the useful types, and not all that are ignored.
        raise PydanticCustomError("block_type", "Input should be {expected}", {"expected": _EXPECTED})
    return name


class Source(schemas.RequestObject):
    """The data or the address of an image or a document."""

    type: Literal["base64", "url", "text", "content"]
    media_type: str = ""
    data: str = ""
    url: str = ""
    content: str | schemas.ListOf[Block] | None = None


class Block(schemas.RequestObject):
    """A piece of a message, or of the result of a call."""

    type: Annotated[str, AfterValidator(_known_type)]
    text: str | None = None
    source: str | Source | None = None
    """The data of an image or a document; for a search result, the address as text."""
    title: str | None = None
    url: str | None = None
    id: schemas.CallId | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: schemas.CallId | None = None
    tool_name: str | None = None
    tool_references: schemas.ListOf[Block] | None = None
    content: str | schemas.ListOf[Block] | Block | None = None
    is_error: bool | None = None
    stdout: str | None = None
    stderr: str | None = None
    error_code: str | None = None


class AnthropicInput(schemas.RequestObject):
    """One message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | schemas.ListOf[Block]


def langchain_messages(message: AnthropicInput) -> list[AnyMessage]:
    """Convert a message of the API to messages for the session.

    - A system message becomes an empty list, because its text is part of the instructions.
    - An assistant's message becomes one message with its text and its calls.
    - A user's message becomes one tool message for each result of a call, then one message with the rest. Without a
      rest, it becomes only the results.

    Raises `InvalidRequestError` for a block that is unsupported or incomplete, or a user's message without any content.
    """
    if message.role == "system":
        return []
    if isinstance(message.content, str):
        return [HumanMessage(message.content) if message.role == "user" else AIMessage(message.content)]
    if message.role == "assistant":
        calls = [_call(block) for block in message.content if block.type == "tool_use"]
        return [AIMessage(text_of_blocks(message.content, is_assistant=True), tool_calls=calls)]
    # Providers require a result right behind the message with its call.
    results: list[AnyMessage] = [_result(block) for block in message.content if block.type == "tool_result"]
    content = _content(message.content)
    if content or not results:
        return [*results, HumanMessage(_simplify(content))]
    return results


def text_of_blocks(content: str | list[Block] | None, *, is_assistant: bool = False) -> str:
    """Return the text of a message as paragraphs, separated by empty lines. Blocks without text, such as images, are
    left out.

    Args:
        content: The content of a message; None is empty.
        is_assistant: Whether summaries of compacted history become text, too, and tools that Anthropic's servers ran:
            their calls as `[Call of NAME: JSON]`, their results as `[Result of NAME: TEXT]`.

    Raises:
        InvalidRequestError: A block has an unsupported or unknown type.
    """
    if content is None or isinstance(content, str):
        return content or ""
    # A result names its call by id only.
    names = {block.id: block.name for block in content if block.id}
    texts = []
    for block in content:
        if block.type == "text":
            texts.append(block.text or "")
        elif is_assistant and block.type == "compaction":
            texts.append(_plain_text(block))
        elif is_assistant and block.type in ("server_tool_use", "mcp_tool_use"):
            texts.append(f"[Call of {block.name}: {json.dumps(block.input or {}, ensure_ascii=False)}]")
        # No tool of this server has made the result, so only its text is of use.
        elif is_assistant and block.type.endswith("_tool_result"):
            name = names.get(block.tool_use_id or "") or block.type.removesuffix("_tool_result")
            texts.append(f"[Result of {name}: {_plain_text(block) or 'empty'}]")
        elif not (is_assistant and block.type == "container_upload"):
            _check_ignored(block)
    return "\n\n".join(text for text in texts if text)


def _check_ignored(block: Block) -> None:
    """Raise `InvalidRequestError` for a block of an unsupported or unknown type, which must not be dropped silently."""
    if block.type in _UNSUPPORTED:
        raise InvalidRequestError(
            f"A block of type {block.type} is not supported: {_UNSUPPORTED[block.type]}.", "messages"
        )
    if block.type not in _WITHOUT_EFFECT and block.type not in _GIVEN:
        raise InvalidRequestError(f"A block of type {block.type[:100]!r} is not supported here.", "messages")


def _content(blocks: Iterable[Block]) -> list[dict[str, Any]]:
    """Convert blocks to LangChain's content blocks: images and documents, and all others that have a text as text
    blocks.

    Blocks without effect are left out. Raises `InvalidRequestError` for an unsupported block, or an incomplete image or
    document.
    """
    found: list[dict[str, Any]] = []
    for block in blocks:
        if block.type in ("image", "document"):
            found += _media(block)
        elif block.type in _GIVEN:
            found.append({"type": "text", "text": _given_text(block)})
        else:
            _check_ignored(block)
    return found


def _given_text(block: Block) -> str:
    """Return the text of a block that is neither an image nor a document.

    For a reference to a tool it is a sentence that the tool can be called, for a search result the title, the address
    and the text, and otherwise the field `text`.
    """
    if block.type == "tool_reference":
        return f"The tool {block.tool_name} can be called now."
    return _plain_text(block) if block.type == "search_result" else block.text or ""


def _plain_text(value: str | list[Block] | Block | None) -> str:
    """Return all text that a block, or a list of blocks, contains: each field that has a text on a line of its own,
    then the text of inner blocks.

    Images and encrypted content have none. None is an empty text.
    """
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list):
        return "\n".join(text for each in value if (text := _plain_text(each)))
    source = value.source
    if isinstance(source, Source):
        source = source.data if source.type == "text" else _plain_text(source.content)
    fields = (value.title, value.url, source, value.error_code, value.tool_name, value.text, value.stdout, value.stderr)
    parts = (*fields, _plain_text(value.content), _plain_text(value.tool_references))
    return "\n".join(part for part in parts if part)


def _media(block: Block) -> list[dict[str, Any]]:
    """Convert an image or a document to LangChain's content blocks; a document may become several.

    An image at an address keeps the address. Raises `InvalidRequestError` if the source is missing or of an unsupported
    type, or the base64 is invalid.
    """
    source = block.source
    if not isinstance(source, Source):
        raise InvalidRequestError(f"A block of type {block.type} has no source.", "messages")
    if block.type == "document":
        return _document(source, block.title)
    # The model's provider fetches the image; this server connects to no address of a request.
    if source.type == "url":
        return [image(url=source.url)]
    if source.type != "base64":
        raise InvalidRequestError("An image is given by its address, or by its bytes in base64.", "messages")
    return [image(mime_type=source.media_type, base64=source.data)]


def _document(source: Source, title: str | None) -> list[dict[str, Any]]:
    """Convert a document to content blocks.

    Base64 becomes a file with the title as its name; text becomes one text below the title; a list of blocks is
    converted block by block, after the title. Raises `InvalidRequestError` for a document that is given by an address,
    for invalid base64, and for an unsupported block in the list.
    """
    if source.type == "url":
        raise InvalidRequestError("A document is given by its bytes in base64, or as text.", "messages")
    if source.type == "base64":
        return [document_block(mime_type=source.media_type, base64=source.data, name=title)]
    if source.type == "content" and isinstance(source.content, list):
        heading = [{"type": "text", "text": title}] if title else []
        return [*heading, *_content(source.content)]
    text = source.data if source.type == "text" else source.content or ""
    return [{"type": "text", "text": f"{title}\n\n{text}" if title else text}]


def _simplify(blocks: list[dict[str, Any]]) -> str | list[Any]:
    """Return a single text block as its text, and any other content blocks unchanged; raise `InvalidRequestError` if
    there are none.
    """
    if not blocks:
        raise InvalidRequestError("A message of the user's has no content.", "messages")
    return simplify_blocks(blocks)


def _call(block: Block) -> ToolCall:
    """Convert a block of type `tool_use` to a tool call; without `input` the arguments are empty.

    Raises `InvalidRequestError` if the id or the name is missing.
    """
    if not block.id or not block.name:
        raise InvalidRequestError("A block of type tool_use has no id or no name.", "messages")
    return ToolCall(id=block.id, name=block.name, args=block.input or {}, type="tool_call")


def _result(block: Block) -> ToolMessage:
    """Convert a block of type `tool_result` to a tool message, whose status is `error` if the block is marked as one.

    The content is a text, or content blocks if there are images or files; empty if the block has none. Raises
    `InvalidRequestError` if the block does not name its call, or contains an unsupported block.
    """
    if not block.tool_use_id:
        raise InvalidRequestError("A block of type tool_result has no tool_use_id.", "messages")
    content: str | list[Any] = block.content if isinstance(block.content, str) else ""
    if isinstance(block.content, list):
        blocks = _content(block.content)
        content = _simplify(blocks) if blocks else ""
    return ToolMessage(content, tool_call_id=block.tool_use_id, status="error" if block.is_error else "success")
