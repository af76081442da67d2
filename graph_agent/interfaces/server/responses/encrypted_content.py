"""Encodes reasoning and summaries as the opaque text of an item's `encrypted_content`, and reads them back."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage

from graph_agent.base._internal.text import to_json_safe
from graph_agent.base.history_notes import summary_note
from graph_agent.interfaces.server.problems import InvalidRequestError, ProblemError

_TYPES = ("reasoning", "thinking", "redacted_thinking")
"""Types of content blocks with reasoning, in the formats of the providers."""


def reasoning_blocks(message: AIMessage) -> list[dict[str, Any]]:
    """Return the content blocks of a message that contain reasoning, in the provider's own format; empty for plain
    text.
    """
    blocks = message.content if isinstance(message.content, list) else []
    return [block for block in blocks if isinstance(block, dict) and block.get("type") in _TYPES]


def encoded(value: Any) -> str:
    """Return a JSON value as the opaque text of an item's `encrypted_content`. It is base64, and not encrypted."""
    return base64.urlsafe_b64encode(json.dumps(to_json_safe(value)).encode()).decode()


def _decoded(content: str) -> Any:
    """Return the JSON value in a text of `encoded`; None for any other text."""
    try:
        return to_json_safe(json.loads(base64.urlsafe_b64decode(content.encode())))
    # The text is a client's, which may send anything; a deep value ends the recursion of the parser.
    except (binascii.Error, ValueError, RecursionError):
        return None


def blocks_of(content: str | None) -> list[dict[str, Any]]:
    """Return the reasoning blocks in the `encrypted_content` of a reasoning item.

    The list is empty if the content is None or an empty text.

    Raises `InvalidRequestError` for any text that this server has not made of reasoning blocks.
    """
    if not content:
        return []
    blocks = _decoded(content)
    if not isinstance(blocks, list) or not all(
        isinstance(each, dict) and each.get("type") in _TYPES for each in blocks
    ):
        raise _foreign("reasoning")
    return blocks


def encoded_summary(text: str) -> str:
    """Return the `encrypted_content` of a compaction item, which replaces older items by a summary."""
    return encoded({"summary": text})


def compaction_note(content: str | None) -> HumanMessage:
    """Return the summary in the `encrypted_content` of a compaction item as a message of the user.

    Raises `InvalidRequestError` if the content is missing, or this server has not made it of a summary.
    """
    found = _decoded(content or "")
    if not isinstance(found, dict) or not isinstance(found.get("summary"), str):
        raise _foreign("compaction")
    return summary_note(found["summary"])


def _foreign(kind: str) -> ProblemError:
    """Return the error for an item whose `encrypted_content` is from another server; `kind` is the type of the item."""
    return InvalidRequestError(
        f"The encrypted_content of a {kind} item is not from this server; send it as it was given.", "input"
    )
