"""Messages made such that every provider and every store can take them."""

from __future__ import annotations

from typing import TypeVar

from langchain_core.messages import AIMessage, BaseMessage

from graph_agent._internal.text import clean, plain

M = TypeVar("M", bound=BaseMessage)


def sanitized(message: M) -> M:
    """The message with what no UTF-8 can hold replaced; the very same one when there is nothing to replace.

    It is called for each message of each request, so that text in ASCII costs no more than a look.
    """
    content = message.content
    if isinstance(content, str):
        if content.isascii() and "\x00" not in content:
            return message
        safe = clean(content)
        return message if safe == content else message.model_copy(update={"content": safe})
    try:
        plainly = plain(content)
    except ValueError:
        # Too deep to look at; whether the provider takes it is the provider's to say.
        return message
    return message if plainly == content else message.model_copy(update={"content": plainly})


def with_text(message: AIMessage, text: str) -> AIMessage:
    """The message with another text, its other blocks kept; the very same one when the text is the same."""
    if message.text == text:
        return message
    content = message.content
    if isinstance(content, str):
        return message.model_copy(update={"content": text})
    others = [block for block in content if isinstance(block, dict) and block.get("type") != "text"]
    return message.model_copy(update={"content": [*others, {"type": "text", "text": text}]})


def without_calls(reply: AIMessage) -> AIMessage:
    """The reply with its calls taken out, so that it can end a history."""
    if not reply.tool_calls and not reply.invalid_tool_calls:
        return reply
    bare = without_call_blocks(reply)
    return AIMessage(
        bare.content,
        id=reply.id,
        usage_metadata=reply.usage_metadata,
        response_metadata=reply.response_metadata,
        additional_kwargs=bare.additional_kwargs,
    )


def without_call_blocks(reply: AIMessage) -> AIMessage:
    """The reply with its calls in `tool_calls` alone, without the provider's own form of them."""
    content = reply.content
    if isinstance(content, list):
        content = [block for block in content if not (isinstance(block, dict) and block.get("type") in _CALL_BLOCKS)]
    kwargs = {name: value for name, value in reply.additional_kwargs.items() if name != "tool_calls"}
    return reply.model_copy(update={"content": content, "additional_kwargs": kwargs})


_CALL_BLOCKS = {"tool_use", "tool_call", "function_call"}
