"""Adding up what the model calls below a run used, those that were cut off included."""

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
from graph_agent.models.estimate import estimated_usage, usage_until
from graph_agent.state.usage import add_usage
from graph_agent.types import NO_USAGE, Usage


@dataclass(slots=True)
class _Asked:
    request: Sequence[BaseMessage]
    model: str
    said: str = ""
    reported: UsageMetadata | None = None


class UsageCounter(AsyncCallbackHandler):
    """Adds up what every model call that it hears of used.

    Args:
        prices: What models cost; empty for unknown.
        estimates: Whether a reply counts by an estimate where its provider does not say what it took.
    """

    def __init__(self, prices: Mapping[str, Price], *, estimates: bool) -> None:
        self.usage: Usage = NO_USAGE
        """What the calls that were answered used."""
        self._prices = prices
        self._estimates = estimates
        self._asked: dict[UUID, _Asked] = {}

    @property
    def under_way(self) -> Usage:
        """What the calls that are not answered have used so far."""
        usage = NO_USAGE
        for asked in list(self._asked.values()):
            cut_off = usage_until(asked.request, asked.said, asked.reported, model=asked.model)
            usage = add_usage(usage, usage_of(cut_off, self._prices))
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
        """Hear a call begin."""
        self._asked[run_id] = _Asked(messages[0], str((metadata or {}).get("ls_model_name") or ""))

    async def on_llm_new_token(
        self,
        token: str | list[str | dict[str, Any]],
        *,
        chunk: GenerationChunk | ChatGenerationChunk | None = None,
        run_id: UUID,
        **_: Any,
    ) -> None:
        """Hear a token."""
        asked = self._asked.get(run_id)
        if asked is None or not isinstance(chunk, ChatGenerationChunk):
            return
        asked.said += chunk.message.text
        if isinstance(chunk.message, AIMessageChunk) and chunk.message.usage_metadata:
            asked.reported = add_figures(asked.reported, chunk.message.usage_metadata)

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Hear a call fail; one that is cancelled stays under way."""
        if isinstance(error, Exception):
            self._asked.pop(run_id, None)

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """Hear a call end."""
        asked = self._asked.pop(run_id, None)
        for generation in response.generations[0] if response.generations else []:
            if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
                reply = generation.message
                if self._estimates and asked is not None and reply.usage_metadata is None:
                    reply = reply.model_copy(update={"usage_metadata": estimated_usage(asked.request, reply)})
                self.usage = add_usage(self.usage, usage_of(reply, self._prices))
