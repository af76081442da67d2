"""Reads the chunks of one streamed reply in place, so that LangChain makes the right reply of them."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk

from graph_agent.base.finish import cut_off
from graph_agent.models.sanitize import ChunkSanitizer
from graph_agent.models.wire.fragments import CallAssembler, judged, with_blank_arguments
from graph_agent.models.wire.usage import UsageSoFar


class ReplyReader:
    """Corrects the chunks of one streamed reply in place, so that LangChain joins them to the right reply.

    It assigns fragments to calls, converts reported usage, and sanitizes text. Create one object for each reply.

    Args:
        sums_usage: Whether each chunk reports only its own usage, which LangChain adds up correctly. If False, each
            chunk reports the usage so far, and is changed to the difference.
    """

    def __init__(self, *, sums_usage: bool = False) -> None:
        self.calls = CallAssembler()
        self._usage = None if sums_usage else UsageSoFar()
        self._sanitize = ChunkSanitizer()
        self._by_chunk = False

    def receive(self, message: BaseMessage) -> None:
        """Correct the next chunk in place: assign the fragments of calls to their calls, replace usage totals by
        differences (not with `sums_usage`), and sanitize the texts.
        """
        self._by_chunk = True
        if isinstance(message, AIMessageChunk):
            if message.tool_call_chunks or message.additional_kwargs:
                self.calls.receive(message)
            if message.usage_metadata and self._usage is not None:
                self._usage.receive(message)
        # Last, because the halves of a character belong to one call.
        self._sanitize(message)

    def receive_event(self, event: Any) -> None:
        """Read the call fragments in an event of `stream_events(version="v3")`. Ignored once `receive` was called."""
        if self._by_chunk or not isinstance(event, dict):
            return
        block = event.get("content") or event.get("delta") or {}
        index = event.get("index")
        if block.get("type") == "tool_call_chunk" and event.get("event") == "content-block-start":
            self.calls.add(tool_call_chunk(name=block.get("name"), args="", id=block.get("id"), index=index))
        elif block.get("type") == "tool-call-delta":
            self.calls.add(tool_call_chunk(name=None, args=block.get("args"), id=None, index=index))

    def read(self, reply: AIMessage) -> AIMessage:
        """Return the complete reply with exactly the calls that were streamed.

        If fragments cannot be assigned to calls with certainty, all calls become invalid ones (see `judged`). Invalid
        calls with blank arguments become valid ones without arguments.

        Args:
            reply: The reply that LangChain has joined.
        """
        if self.calls:
            reply = judged(reply, self.calls, is_cut_off=cut_off(reply) is not None)
        return with_blank_arguments(reply)
