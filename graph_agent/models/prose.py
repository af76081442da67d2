"""A history with calls and results, written out for a model that has no tool calling."""

from __future__ import annotations

import json
from collections.abc import Sequence

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage


def as_prose(messages: Sequence[AnyMessage]) -> list[BaseMessage]:
    """Replace each call by the JSON that asks for it, and each run of results by one message of the user's.

    Message ids and the other messages stay as they are.
    """
    written: list[BaseMessage] = []
    results: list[ToolMessage] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            results.append(message)
            continue
        _flush(results, written)
        if isinstance(message, AIMessage) and message.tool_calls:
            written.append(_asking(message))
        else:
            written.append(message)
    _flush(results, written)
    return written


def _asking(message: AIMessage) -> AIMessage:
    calls = [{"id": call["id"], "name": call["name"], "arguments": call["args"]} for call in message.tool_calls]
    envelope = json.dumps({"tool_calls": calls}, ensure_ascii=False)
    return AIMessage("\n".join(part for part in (message.text, envelope) if part), id=message.id)


def _flush(results: list[ToolMessage], written: list[BaseMessage]) -> None:
    if not results:
        return
    blocks = [
        f'<tool_result id="{result.tool_call_id}" name="{result.name}" status="{result.status}">\n'
        f"{result.text}\n</tool_result>"
        for result in results
    ]
    written.append(HumanMessage("\n".join(blocks), id=results[0].id))
    results.clear()
