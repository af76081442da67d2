"""The tokens of one model request, passed to their receivers without a coroutine per receiver."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManager, AsyncCallbackManagerForLLMRun, BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk, GenerationChunk, LLMResult
from langchain_core.utils.uuid import uuid7

from graph_agent._internal.failure_log import log_failure
from graph_agent.models.message_stream import MessageStream
from graph_agent.models.stream_watch import StreamWatch, TokenTimeout

logger = logging.getLogger(__name__)


class TokenRelay(AsyncCallbackManagerForLLMRun):
    """The callback manager of a request without callbacks.

    Events other than tokens take LangChain's way, and so does a token without a chunk, which a model that does not
    stream reports itself.

    Args:
        manager: LangChain's manager of the request.
        streams: The message streams of the run.
        limit: The time limit.
        watch: Records what the reader receives; None for a request whose tokens no reader receives.
    """

    def __init__(
        self,
        manager: AsyncCallbackManager,
        streams: Sequence[MessageStream],
        limit: TokenTimeout,
        watch: StreamWatch | None,
    ) -> None:
        # The limit comes before the watch, so that it does not count the time of the reader.
        handlers: list[BaseCallbackHandler] = [
            *(stream.handler for stream in streams),
            limit,
            *([watch] if watch is not None else []),
        ]
        super().__init__(
            run_id=uuid7(),
            handlers=handlers,
            inheritable_handlers=handlers,
            parent_run_id=manager.parent_run_id,
            tags=manager.tags,
            inheritable_tags=manager.inheritable_tags,
            metadata=manager.metadata,
            inheritable_metadata=manager.inheritable_metadata,
        )
        self._streams = streams
        self._limit = limit
        self._watch = watch

    def begin(self, request: Sequence[BaseMessage]) -> None:
        """Start the reply to a request."""
        for stream in self._streams:
            stream.begin(self, request)
        if self._watch is not None:
            self._watch.begin()

    async def on_llm_new_token(
        self,
        token: str | list[str | dict[str, Any]],
        *,
        chunk: GenerationChunk | ChatGenerationChunk | None = None,
        **kwargs: Any,
    ) -> None:
        """Pass one token on; called by LangChain."""
        if not isinstance(chunk, ChatGenerationChunk):
            await super().on_llm_new_token(token, chunk=chunk, **kwargs)
            return
        message = chunk.message
        self._limit.receive(message)
        # The watch comes first: its gates then let the token pass at once.
        new = self._watch.receive(message) if self._watch is not None else ""
        for stream in self._streams:
            stream.send(message)
        if new and self._watch is not None:
            try:
                await self._watch.forward(new)
            except Exception as error:  # noqa: BLE001 - as in LangChain, a receiver's error does not end the request
                log_failure(logger, "The reader of an answer", error)

    def end(self, result: LLMResult) -> None:
        """End the reply."""
        for stream in self._streams:
            stream.end(self, result)

    def fail(self, error: BaseException) -> None:
        """End the reply with an error."""
        for stream in self._streams:
            stream.fail(self, error)
