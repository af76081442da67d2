"""The model of `benchmarks.serve`: it takes no time and streams the same reply to every request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

TOKENS = ["The", *[f" word{i}" for i in range(30)], "."]
"""The reply of both servers."""


class SaysTheSame(BaseChatModel):
    """A model that streams `TOKENS`."""

    @property
    def _llm_type(self) -> str:
        return "says-the-same"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("".join(TOKENS)))])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for token in TOKENS:
            await asyncio.sleep(0)  # yield to the loop, as the bare server does
            yield ChatGenerationChunk(message=AIMessageChunk(content=token))
