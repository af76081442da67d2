"""Usage of all model calls within a run, including calls that were cancelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.ai import add_usage as add_figures
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, GenerationChunk, LLMResult

from graph_agent.budgets import usage_of
from graph_agent.config import Price
from graph_agent.models.usage import add_usage, cut_off_reply, estimated_usage
from graph_agent.types import NO_USAGE, Usage


@dataclass(slots=True)
class _OpenCall:
    request: Sequence[BaseMessage]
    model: str
    text: str = ""
    reported: UsageMetadata | None = None


class UsageCounter(AsyncCallbackHandler):
    """Callback handler that sums the usage of model calls.

    Args:
        prices: Prices of models; empty for unknown.
        estimates: Whether to estimate the usage of a reply if its provider reports none.
    """

    def __init__(self, prices: Mapping[str, Price], *, estimates: bool) -> None:
        self.usage: Usage = NO_USAGE
        """Usage of the finished calls."""
        self._prices = prices
        self._estimates = estimates
        self._open: dict[UUID, _OpenCall] = {}

    @property
    def under_way(self) -> Usage:
        """Estimated usage of the calls without a reply so far."""
        usage = NO_USAGE
        for call in list(self._open.values()):
            partial = cut_off_reply(call.request, call.text, call.reported, model=call.model)
            usage = add_usage(usage, usage_of(partial, self._prices))
        return usage

    async def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Record the start of a call."""
        self._open[run_id] = _OpenCall(messages[0], str((metadata or {}).get("ls_model_name") or ""))

    async def on_llm_new_token(
        self,
        token: str | list[str | dict[str, Any]],
        *,
        chunk: GenerationChunk | ChatGenerationChunk | None = None,
        run_id: UUID,
        **_: Any,
    ) -> None:
        """Record a token."""
        call = self._open.get(run_id)
        if call is None or not isinstance(chunk, ChatGenerationChunk):
            return
        call.text += chunk.message.text
        if isinstance(chunk.message, AIMessageChunk) and chunk.message.usage_metadata:
            call.reported = add_figures(call.reported, chunk.message.usage_metadata)

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Drop a failed call; a cancelled one stays in `under_way`."""
        if isinstance(error, Exception):
            self._open.pop(run_id, None)

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """Add the usage of a finished call."""
        call = self._open.pop(run_id, None)
        for generation in response.generations[0] if response.generations else []:
            if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
                reply = generation.message
                if self._estimates and call is not None and reply.usage_metadata is None:
                    reply = reply.model_copy(update={"usage_metadata": estimated_usage(call.request, reply)})
                self.usage = add_usage(self.usage, usage_of(reply, self._prices))
