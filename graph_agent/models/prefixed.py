"""A model whose reply begins with a given sentence, in its stream too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig

from graph_agent.models.retry import ask, pause_before_retry

# This run stands for the inner one: callbacks that heard of both would count its tokens twice.
_UNHEARD: RunnableConfig = {"tags": ["nostream"], "callbacks": []}


class PrefixedChatModel(BaseChatModel):
    """Puts `prefix` and a blank line before what `inner` says, as one message with one id.

    Made for the answer at a limit, whose first sentence is ours: the reader sees it before the model's first token.
    When the model fails for good the sentence stands alone, and `failure` says why. It runs asynchronously only, and
    is made anew for each answer.
    """

    inner: Runnable[Any, AIMessage]
    options: Mapping[str, Any]
    """Keyword arguments of the inner call."""
    prefix: str
    retries: int
    """Further attempts after a transient error, before the inner model's first token."""
    timeout_s: float | None
    """Seconds an attempt may take to its end, or, when streaming, to each of its tokens."""
    failure: Exception | None = None

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
        try:
            reply = await ask(
                self.inner, messages, self.options, retries=self.retries, timeout_s=self.timeout_s, config=_UNHEARD
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, the sentence stands; the caller reads `failure`
            self.failure = error
            whole = AIMessage(self.prefix)
        else:
            content: Any = (
                [self._head, *reply.content] if isinstance(reply.content, list) else self._head + reply.content
            )
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
        yield ChatGenerationChunk(message=AIMessageChunk(content=self.prefix))
        begun = False
        for attempt in range(self.retries + 1):
            chunks = self.inner.astream(messages, _UNHEARD, **self.options)
            try:
                while True:
                    async with asyncio.timeout(self.timeout_s):
                        chunk = await anext(chunks)
                    if not begun:
                        yield ChatGenerationChunk(message=AIMessageChunk(content="\n\n"))
                        begun = True
                    if isinstance(chunk, AIMessageChunk):
                        yield ChatGenerationChunk(message=chunk.model_copy(update={"id": None}))
            except StopAsyncIteration:
                return
            except Exception as error:  # noqa: BLE001 - as above
                if begun or not await pause_before_retry(error, attempt, self.retries):
                    self.failure = error
                    return

    @property
    def _head(self) -> str:
        return f"{self.prefix}\n\n"
