"""Adds a fixed prefix to the reply of another model, also in its stream."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import add_ai_message_chunks, add_usage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig

from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.usage import TimedRequest, record_cut_off
from graph_agent.models.binding import ModelCall
from graph_agent.models.errors import classify_model_error
from graph_agent.models.reply_reader import ReplyReader
from graph_agent.models.retry import ask, pause_before_retry
from graph_agent.models.stream_watch import ModelTimeoutError, TokenTimeout
from graph_agent.models.streaming import may_refuse_stream, unstreamed, without_refused_stream
from graph_agent.models.wire.usage import reports_differences

_NO_LIMITS = {"model_timeout_s": None, "model_total_timeout_s": None}
# Callbacks see only the outer run; with both runs they would count the tokens twice.
_WITHOUT_CALLBACKS: RunnableConfig = {"tags": ["nostream"], "callbacks": []}


class PrefixedChatModel(BaseChatModel):
    """Streams `prefix`, then another model's reply, as one message with one id; a blank line separates them.

    Used for answers at a limit: the reader sees the fixed sentence before the model has sent a token. If the model
    fails for good, the message ends there and `failure` holds the error. Runs asynchronously only. Create one instance
    per answer.
    """

    model_call: ModelCall
    """The call of the model that writes the reply."""
    recover: Callable[[Exception], ModelCall | None]
    """Receives the error of a model that failed before its first token; returns another model's call or None."""
    prefix: str
    """The fixed beginning of the message."""
    settings: LoopConfig
    """The retries before the model's first token, and the time limits of each attempt."""
    hides_calls: bool = False
    """Whether any piece of the reply may follow a call of a tool that the provider runs, so that the request is not
    repeated after one."""
    failure: Exception | None = None
    """The error of the last model if it failed for good; otherwise None."""

    @property
    def _llm_type(self) -> str:
        return "prefixed"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise TypeError("PrefixedChatModel runs asynchronously only; use ainvoke() or astream().")

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        """Return the prefix followed by the reply of the wrapped request; the arguments are not used.

        If it fails, another model is asked as long as `recover` returns one; then the prefix alone is returned, and
        `failure` has the error.
        """
        model_call: ModelCall | None = self.model_call
        whole = AIMessage(self.prefix)
        while model_call is not None:
            try:
                reply = await ask(
                    model_call.runnable,
                    model_call.request,
                    model_call.options,
                    self._limits(model_call),
                    config=_WITHOUT_CALLBACKS,
                )
            except Exception as error:  # noqa: BLE001 - any error leaves the prefix as the message; the caller reads `failure`
                model_call = self._recover(error)
                continue
            body, head = reply.content, f"{self.prefix}\n\n"
            content: Any = [head, *body] if isinstance(body, list) else head + body.lstrip()
            # The id is set by this run, so that the whole message and its streamed tokens have the same id.
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
        """Yield the prefix, then the chunks of the reply to the wrapped request, after a blank line.

        Before the reply's first token, a failed request is repeated (not after a timeout), then sent to another model;
        if none is left, only the prefix is yielded. A server that ignores streaming is asked again without it. After
        the first token, an error ends the stream. The error without a remedy is stored in `failure`. A cancellation is
        raised, after the received part is recorded.
        """
        yield ChatGenerationChunk(message=AIMessageChunk(content=self.prefix))
        started = False
        attempt = 0
        model_call = self.model_call
        received: list[AIMessageChunk]
        while True:
            limits = self._limits(model_call)
            model_call = model_call._replace(runnable=without_refused_stream(model_call.runnable))
            limit = TokenTimeout(limits.model_timeout_s, limits.model_total_timeout_s)
            chunks = model_call.runnable.astream(model_call.request, _WITHOUT_CALLBACKS, **model_call.options)
            limit.begin()
            received = []
            reader = ReplyReader(sums_usage=reports_differences(model_call.runnable))
            timed = TimedRequest.to(model_call.runnable, model_call.request, model_call.options)
            try:
                while True:
                    with limit:
                        message = await anext(chunks)
                    limit.restart()
                    timed.receive()
                    # A model that does not stream yields its whole reply as a message.
                    if not isinstance(message, AIMessageChunk):
                        message = AIMessageChunk(**message.model_dump(exclude={"type"}))
                    reader.receive(message)
                    received.append(message)
                    if not started and not self.hides_calls and not _lstripped(message).content:
                        # The request may still be retried.
                        continue
                    before = [AIMessageChunk(content="\n\n"), *map(_lstripped, received[:-1])]
                    for piece in [message] if started else [*before, _lstripped(message)]:
                        yield ChatGenerationChunk(message=piece.model_copy(update={"id": None}))
                    started = True
            except StopAsyncIteration:
                timed.end(add_ai_message_chunks(*received) if received else None)
                for piece in [] if started else map(_lstripped, received):
                    yield ChatGenerationChunk(message=piece.model_copy(update={"id": None}))
                return
            except asyncio.CancelledError:
                text = "".join(chunk.text for chunk in received)
                reported = functools.reduce(add_usage, (chunk.usage_metadata for chunk in received), None)
                cut_off = record_cut_off(model_call.runnable, model_call.request, model_call.options, text, reported)
                timed.end(cut_off, "cancelled")
                raise
            except Exception as error:  # noqa: BLE001 - as above
                timed.end(None, classify_model_error(error))
                if started:
                    # The reader has a part of the reply, which another model cannot continue.
                    self.failure = error
                    return
                if may_refuse_stream(model_call.runnable, model_call.options, error):
                    model_call = model_call._replace(runnable=unstreamed(model_call.runnable))
                elif not isinstance(error, ModelTimeoutError) and await pause_before_retry(
                    error, attempt, limits.model_retries
                ):
                    attempt += 1
                elif (other := self._recover(error)) is not None:
                    model_call, attempt = other, 0
                else:
                    return

    def _limits(self, model_call: ModelCall) -> LoopConfig:
        """Return the settings for one attempt; without time limits if the model applies its own."""
        return self.settings.model_copy(update=_NO_LIMITS) if model_call.bounded else self.settings

    def _recover(self, error: Exception) -> ModelCall | None:
        """Return the call of another model after an error; if there is none, set `failure` and return None."""
        model_call = self.recover(error)
        self.failure = error if model_call is None else None
        return model_call


def _lstripped(chunk: AIMessageChunk) -> AIMessageChunk:
    """Return a chunk without the white space at its beginning; used up to the first text of a reply."""
    content = chunk.content
    blank = isinstance(content, str) and content != content.lstrip()
    return chunk.model_copy(update={"content": chunk.text.lstrip()}) if blank else chunk
