"""Streaming of the reasoning of an agent's own model calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, GenerationChunk

_NODES = ("plan", "finalize")


def reasoning_text(message: AIMessage) -> str:
    """Return the text of a message's reasoning; empty for none, or if the provider shows none."""
    if isinstance(message.content, str) and not message.additional_kwargs:
        return ""
    return "".join(
        str(block.get("reasoning") or "") for block in message.content_blocks if block["type"] == "reasoning"
    )


class ReasoningReader(AsyncCallbackHandler):
    """Passes on the reasoning of the agent's model calls, without those of its delegates, hooks and tools.

    Args:
        emit: Receives each piece.
    """

    run_inline = True
    """Avoids a task per token."""

    def __init__(self, emit: Callable[[str], Awaitable[None]]) -> None:
        self._emit = emit
        self._own: set[UUID] = set()

    async def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Record a call of the agent's own nodes."""
        place = metadata or {}
        if place.get("langgraph_node") in _NODES and "|" not in str(place.get("langgraph_checkpoint_ns", "")):
            self._own.add(run_id)

    async def on_llm_new_token(
        self, *_: Any, chunk: GenerationChunk | ChatGenerationChunk | None = None, run_id: UUID, **__: Any
    ) -> None:
        """Pass on the reasoning of one token."""
        message = chunk.message if isinstance(chunk, ChatGenerationChunk) and run_id in self._own else None
        if isinstance(message, AIMessageChunk) and (text := reasoning_text(message)):
            await self._emit(text)
