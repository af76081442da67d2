"""Checks that checkpoints can hold messages and values, before LangGraph stores them."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import BaseMessage, convert_to_messages
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Overwrite

from graph_agent.state.own_fields import first_unplain

_MESSAGE_FIELDS = ("content", "additional_kwargs", "response_metadata", "tool_calls", "artifact")


def value_fault(value: Any) -> str | None:
    """Return why checkpoints cannot hold a value; None if they can."""
    if (found := first_unplain(value)) is None:
        return None
    try:
        JsonPlusSerializer().dumps_typed(value)
    except (TypeError, ValueError, RecursionError):
        where, kind = found
        return (
            f"checkpoints cannot hold it (value{where} is of type {kind}; return plain values, such as text and dicts)"
        )
    return None


def messages_fault(written: Any) -> str | None:
    """Return why a write to the messages is invalid; None if it is valid.

    Args:
        written: A message or a list of messages, in any form that LangChain accepts, or an `Overwrite` of them.
    """
    if isinstance(written, Overwrite):
        written = written.value
    items = written if isinstance(written, list) else [written]
    try:
        messages = convert_to_messages(items)
    except (ValueError, NotImplementedError, TypeError) as error:
        why = str(error).splitlines()[0].rstrip(".")
        return f"{why}; return messages, such as [AIMessage('…')]"
    return next((fault for message in messages if (fault := _message_fault(message)) is not None), None)


def _message_fault(message: BaseMessage) -> str | None:
    if all(first_unplain(getattr(message, name, None)) is None for name in _MESSAGE_FIELDS):
        return None
    try:
        JsonPlusSerializer().dumps_typed(message)
    except (TypeError, ValueError, RecursionError):
        return f"checkpoints cannot hold a message of type {message.type!r} with such values; use plain values"
    return None
