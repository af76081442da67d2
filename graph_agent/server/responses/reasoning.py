"""Reasoning of the model as items, and its way back into a later request."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from langchain_core.messages import AIMessage

from graph_agent._internal.text import plain
from graph_agent.server.errors.problems import ProblemError

_TYPES = ("reasoning", "thinking", "redacted_thinking")
"""Types of content blocks that hold reasoning, in the formats of the providers."""


def reasoning_blocks(message: AIMessage) -> list[dict[str, Any]]:
    """Return the content blocks of a message that hold reasoning, in the provider's own format."""
    blocks = message.content if isinstance(message.content, list) else []
    return [block for block in blocks if isinstance(block, dict) and block.get("type") in _TYPES]


def encoded(blocks: list[dict[str, Any]]) -> str:
    """Return blocks as the opaque text of an item's `encrypted_content`."""
    return base64.urlsafe_b64encode(json.dumps(plain(blocks)).encode()).decode()


def blocks_of(content: str | None) -> list[dict[str, Any]]:
    """Return the blocks in an item's `encrypted_content`; none without one.

    Raises:
        ProblemError: If it is no text of `encoded`.
    """
    if not content:
        return []
    try:
        blocks = json.loads(base64.urlsafe_b64decode(content.encode()))
    except (binascii.Error, ValueError, RecursionError):
        blocks = None
    if not isinstance(blocks, list) or not all(
        isinstance(each, dict) and each.get("type") in _TYPES for each in blocks
    ):
        raise ProblemError(
            "invalid",
            "The encrypted_content of a reasoning item is not from this server; send it as it was given.",
            param="input",
        )
    found: list[dict[str, Any]] = plain(blocks)
    return found
