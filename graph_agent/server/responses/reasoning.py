"""Opaque contents of items, which clients send back: the model's reasoning, and summaries of conversations."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage

from graph_agent._internal.text import plain
from graph_agent.planning.compaction import summary_note
from graph_agent.server.errors.problems import ProblemError

_TYPES = ("reasoning", "thinking", "redacted_thinking")
"""Types of content blocks that hold reasoning, in the formats of the providers."""


def reasoning_blocks(message: AIMessage) -> list[dict[str, Any]]:
    """Return the content blocks of a message that hold reasoning, in the provider's own format."""
    blocks = message.content if isinstance(message.content, list) else []
    return [block for block in blocks if isinstance(block, dict) and block.get("type") in _TYPES]


def encoded(value: Any) -> str:
    """Return JSON as the opaque text of an item's `encrypted_content`."""
    return base64.urlsafe_b64encode(json.dumps(plain(value)).encode()).decode()


def _decoded(content: str) -> Any:
    """Return the JSON in a text of `encoded`; None for another text."""
    try:
        return plain(json.loads(base64.urlsafe_b64decode(content.encode())))
    except (binascii.Error, ValueError, RecursionError):
        return None


def blocks_of(content: str | None) -> list[dict[str, Any]]:
    """Return the blocks in the `encrypted_content` of a reasoning item; none without one.

    Raises:
        ProblemError: If it is no text of `encoded`.
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
    """Return the `encrypted_content` of a compaction item with a summary."""
    return encoded({"summary": text})


def compaction_note(content: str | None) -> HumanMessage:
    """Return the note for the model in the `encrypted_content` of a compaction item.

    Raises:
        ProblemError: If it is no text of `encoded_summary`.
    """
    found = _decoded(content or "")
    if not isinstance(found, dict) or not isinstance(found.get("summary"), str):
        raise _foreign("compaction")
    return summary_note(found["summary"])


def _foreign(kind: str) -> ProblemError:
    return ProblemError(
        "invalid",
        f"The encrypted_content of a {kind} item is not from this server; send it as it was given.",
        param="input",
    )
