"""A model whose reply begins with a given sentence, in its stream too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig

# The inner model's own tokens would reach the stream a second time.
_QUIET: RunnableConfig = {"tags": ["nostream"]}


class PrefixedChatModel(BaseChatModel):
    """Puts `prefix` and a blank line before what `inner` says, as one message with one id.

    Made for the answer at a limit, whose first sentence is ours: the reader sees it before the model's first token.
    It runs asynchronously only.
    """

    inner: Runnable[Any, AIMessage]
    prefix: str

    @property
    def _llm_type(self) -> str:
        return "prefixed"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        raise TypeError("PrefixedChatModel runs asynchronously only; use ainvoke() or astream().")

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        reply = await self.inner.ainvoke(messages, _QUIET)
        content: Any = self._head + reply.content if isinstance(reply.content, str) else [self._head, *reply.content]
        # The id is this run's, so that the whole message and its streamed tokens are one.
        whole = reply.model_copy(update={"content": content, "id": None})
        return ChatResult(generations=[ChatGeneration(message=whole)])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk(content=self._head))
        async for chunk in self.inner.astream(messages, _QUIET):
            if isinstance(chunk, AIMessageChunk):
                yield ChatGenerationChunk(message=chunk.model_copy(update={"id": None}))

    @property
    def _head(self) -> str:
        return f"{self.prefix}\n\n"
