"""Calls without results in messages that a hook gave: providers refuse a request that holds one."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

_CALL_BLOCKS = {"tool_use", "tool_call", "function_call"}


def without_open_calls(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """The messages without calls that no result follows; a message that was nothing but such calls is left out."""
    kept: list[AnyMessage] = []
    answered: set[str] = set()
    for message in reversed(messages):
        if isinstance(message, ToolMessage):
            answered.add(message.tool_call_id)
            kept.append(message)
            continue
        if isinstance(message, AIMessage) and message.tool_calls:
            closed = _with_calls(message, answered)
            kept += [closed] if closed.tool_calls or closed.text.strip() else []
        else:
            kept.append(message)
        answered = set()
    return kept[::-1]


def _with_calls(message: AIMessage, ids: set[str]) -> AIMessage:
    if all(call["id"] in ids for call in message.tool_calls):
        return message
    content = message.content
    if isinstance(content, list):
        content = [block for block in content if not _is_open(block, ids)]
    # Another record of the calls, which a provider's client may prefer.
    kwargs = {name: value for name, value in message.additional_kwargs.items() if name != "tool_calls"}
    calls = [call for call in message.tool_calls if call["id"] in ids]
    return message.model_copy(update={"content": content, "tool_calls": calls, "additional_kwargs": kwargs})


def _is_open(block: object, ids: set[str]) -> bool:
    return isinstance(block, dict) and block.get("type") in _CALL_BLOCKS and block.get("id") not in ids
