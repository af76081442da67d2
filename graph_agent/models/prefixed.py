"""A model whose reply stands between given sentences, in its stream too."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import add_usage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig

from graph_agent.models.binding import Way
from graph_agent.models.metering import note_cut_off
from graph_agent.models.retry import ask, pause_before_retry
from graph_agent.models.sentinel import without_sentinel
from graph_agent.models.token_timeout import TokenTimeout

# This run stands for the inner one: callbacks that heard of both would count its tokens twice.
_UNHEARD: RunnableConfig = {"tags": ["nostream"], "callbacks": []}


class PrefixedChatModel(BaseChatModel):
    """Puts `prefix` and a blank line before another model's reply, and `suffix` behind it, as one message with one id.

    Made for the answer at a limit, whose first sentence is ours: the reader sees it before the model's first token.
    When the model fails for good the sentence stands alone, and `failure` says why. It runs asynchronously only, and
    is made anew for each answer.
    """

    way: Way
    """How the other model is asked."""
    recover: Callable[[Exception], Way | None]
    """Asked for another way when one has failed before its first token; None when there is none."""
    prefix: str
    suffix: str = ""
    """The last paragraph below a reply that is an answer, without the sentinel; empty for none."""
    retries: int
    """Further attempts after a transient error, before the other model's first token."""
    timeout_s: float | None
    """Seconds to an attempt's first token and between its tokens; to its end where it is not streamed."""
    total_s: float | None = None
    """Seconds an attempt may take in all; None for no limit."""
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
        way: Way | None = self.way
        whole = AIMessage(self.prefix)
        while way is not None:
            try:
                reply = await ask(
                    way.runnable,
                    way.request,
                    way.options,
                    retries=self.retries,
                    timeout_s=None if way.bounded else self.timeout_s,
                    total_s=None if way.bounded else self.total_s,
                    config=_UNHEARD,
                )
            except Exception as error:  # noqa: BLE001 - whatever it is, the sentence stands; the caller reads `failure`
                way = self._after(error)
                continue
            said, head, tail = reply.content, f"{self.prefix}\n\n", self._tail(reply.text)
            content: Any = [head, *said, *filter(None, [tail])] if isinstance(said, list) else head + said + tail
            # The id is this run's, so that the whole message and its streamed tokens are one.
            whole = reply.model_copy(update={"content": content, "id": None})
            break
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
        attempt = 0
        way = self.way
        heard: list[AIMessageChunk]
        while True:
            limit = TokenTimeout(None) if way.bounded else TokenTimeout(self.timeout_s, self.total_s)
            chunks = way.runnable.astream(way.request, _UNHEARD, **way.options)
            limit.begin()
            heard = []
            try:
                while True:
                    async with limit.waiting():
                        chunk = await anext(chunks)
                    limit.restart()
                    if not isinstance(chunk, AIMessageChunk):
                        continue
                    heard.append(chunk)
                    if not begun and not chunk.content:
                        # It may still be sent again.
                        continue
                    if not begun:
                        yield ChatGenerationChunk(message=AIMessageChunk(content="\n\n"))
                    for piece in [chunk] if begun else heard:
                        yield ChatGenerationChunk(message=piece.model_copy(update={"id": None}))
                    begun = True
            except StopAsyncIteration:
                for piece in [] if begun else heard:
                    yield ChatGenerationChunk(message=piece.model_copy(update={"id": None}))
                if tail := self._tail("".join(piece.text for piece in heard)):
                    yield ChatGenerationChunk(message=AIMessageChunk(content=tail))
                return
            except asyncio.CancelledError:
                said = "".join(chunk.text for chunk in heard)
                reported = functools.reduce(add_usage, (chunk.usage_metadata for chunk in heard), None)
                note_cut_off(way.runnable, way.request, way.options, said, reported)
                raise
            except Exception as error:  # noqa: BLE001 - as above
                if begun:
                    self.failure = error
                    return
                if await pause_before_retry(error, attempt, self.retries):
                    attempt += 1
                elif (other := self._after(error)) is not None:
                    way, attempt = other, 0
                else:
                    return

    def _after(self, error: Exception) -> Way | None:
        """Another way after one has failed; without one, the error is what the answer failed with."""
        way = self.recover(error)
        self.failure = error if way is None else None
        return way

    def _tail(self, reply: str) -> str:
        answer = without_sentinel(reply).strip()
        # Below a sentinel the suffix would keep it from being recognized as a last line.
        return f"\n\n{self.suffix}" if self.suffix and answer and answer == reply.strip() else ""
