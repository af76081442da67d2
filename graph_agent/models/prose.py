"""A history with calls and results, written out for a model that is not asked through its tool calling."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage


def as_prose(messages: Sequence[AnyMessage]) -> list[BaseMessage]:
    """Replace each call by the JSON that asks for it, and each run of results by one message of the user's.

    Message ids and the other messages stay as they are.
    """
    return _written(messages, _envelope, _tagged)


def as_plans(messages: Sequence[AnyMessage]) -> list[BaseMessage]:
    """Replace each message of calls by the plan it was, and each run of results by one object keyed by call id.

    A failed call stands there as `{"error": …}`. Message ids and the other messages stay as they are.
    """
    return _written(messages, _plan, _keyed)


def _written(
    messages: Sequence[AnyMessage],
    asking: Callable[[AIMessage], str],
    answering: Callable[[list[ToolMessage]], str],
) -> list[BaseMessage]:
    written: list[BaseMessage] = []
    results: list[ToolMessage] = []

    def flush() -> None:
        if results:
            written.append(HumanMessage(answering(results), id=results[0].id))
            results.clear()

    for message in messages:
        if isinstance(message, ToolMessage):
            results.append(message)
            continue
        flush()
        if isinstance(message, AIMessage) and message.tool_calls:
            written.append(AIMessage(asking(message), id=message.id))
        else:
            written.append(message)
    flush()
    return written


def _envelope(message: AIMessage) -> str:
    calls = [{"id": call["id"], "name": call["name"], "arguments": call["args"]} for call in message.tool_calls]
    envelope = json.dumps({"tool_calls": calls}, ensure_ascii=False)
    return "\n".join(part for part in (message.text, envelope) if part)


def _tagged(results: list[ToolMessage]) -> str:
    return "\n".join(
        f'<tool_result id="{result.tool_call_id}" name="{result.name}" status="{result.status}">\n'
        f"{result.text}\n</tool_result>"
        for result in results
    )


def _plan(message: AIMessage) -> str:
    tools = [{"id": call["id"], "tool": call["name"], "args": call["args"]} for call in message.tool_calls]
    return json.dumps({"tools": tools, "reasoning": message.text}, ensure_ascii=False)


def _keyed(results: list[ToolMessage]) -> str:
    told = {
        result.tool_call_id: {"error": result.text} if result.status == "error" else _value(result.text)
        for result in results
    }
    return json.dumps({"results": told}, ensure_ascii=False)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
