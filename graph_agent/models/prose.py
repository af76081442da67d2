"""Conversion of calls and results in a history to text, for models without native tool calling."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage


def as_prose(messages: Sequence[AnyMessage]) -> list[BaseMessage]:
    """Replace each message of calls by their JSON, and consecutive results by one user message.

    Message ids and other messages are unchanged.
    """
    return _convert(messages, _envelope, _tagged)


def as_plans(messages: Sequence[AnyMessage]) -> list[BaseMessage]:
    """Replace each message of calls by its plan, and consecutive results by one user message keyed by call id.

    The result of a failed call is `{"error": …}`. Message ids and other messages are unchanged.
    """
    return _convert(messages, _plan, _keyed)


def _convert(
    messages: Sequence[AnyMessage],
    format_calls: Callable[[AIMessage], str],
    format_results: Callable[[list[ToolMessage]], str],
) -> list[BaseMessage]:
    written: list[BaseMessage] = []
    results: list[ToolMessage] = []

    def flush() -> None:
        if results:
            written.append(HumanMessage(format_results(results), id=results[0].id))
            results.clear()

    for message in messages:
        if isinstance(message, ToolMessage):
            results.append(message)
            continue
        flush()
        if isinstance(message, AIMessage) and message.tool_calls:
            written.append(AIMessage(format_calls(message), id=message.id))
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
    results_by_id = {
        result.tool_call_id: {"error": result.text} if result.status == "error" else _value(result.text)
        for result in results
    }
    return json.dumps({"results": results_by_id}, ensure_ascii=False)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
