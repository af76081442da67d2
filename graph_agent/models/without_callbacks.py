"""Sends model requests without LangChain's callbacks if only the run's own message stream observes them.

Callbacks cost more than the rest of a request: metadata, ids and a copy of the messages for tracing are made, whether
or not a handler exists, and each token makes a coroutine for each handler.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from langchain_core.callbacks import (
    AsyncCallbackManager,
    AsyncCallbackManagerForLLMRun,
    BaseCallbackHandler,
    BaseCallbackManager,
)
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, GenerationChunk, LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs, var_child_runnable_config
from langchain_core.utils.uuid import uuid7

from graph_agent._compat import message_handlers
from graph_agent._compat.models import generate_reply, has_own_entry_point, traced_parameters
from graph_agent._internal.failure_log import log_failure
from graph_agent.models.message_gate import MessageStream
from graph_agent.models.sanitize import is_text_only
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


class UnobservedModel(NamedTuple):
    """The model of a request without callbacks."""

    model: BaseChatModel
    manager: AsyncCallbackManager
    """LangChain's manager of the request."""
    streams: Sequence[MessageStream]
    """The message streams of the run: all handlers of `manager`."""


def unobserved_model(
    runnable: object, options: Mapping[str, Any], config: RunnableConfig | None
) -> UnobservedModel | None:
    """Return the model of a request that nothing observes but the message stream of the run; else None.

    Args:
        runnable: The receiver of the request; None is returned for one that is no chat model, and for a chat model
            whose entry points are its own, or replaced by a program that instruments LangChain.
        options: Keyword arguments of the request.
        config: The request's config; None for that of the surrounding run.
    """
    if not isinstance(runnable, BaseChatModel) or has_own_entry_point(runnable):
        return None
    callbacks = (config or {}).get("callbacks") or (var_child_runnable_config.get() or {}).get("callbacks")
    if isinstance(callbacks, BaseCallbackManager) and not callbacks.handlers:
        callbacks = None
    # LangChain's own decision: it adds the handlers of tracing, of debug output and of context managers.
    manager = AsyncCallbackManager.configure(callbacks, runnable.callbacks, runnable.verbose)
    if (handlers := message_handlers(manager)) is None:
        return None
    if handlers:
        # The entries of the message stream hold the tags and the metadata of the request.
        whole = merge_configs(ensure_config(), config)
        metadata = {**whole.get("metadata", {}), **traced_parameters(runnable, options)}
        manager = AsyncCallbackManager.configure(
            callbacks,
            runnable.callbacks,
            runnable.verbose,
            whole.get("tags"),
            runnable.tags,
            metadata,
            runnable.metadata,
        )
    return UnobservedModel(runnable, manager, [MessageStream(handler) for handler in handlers])


async def request_unobserved(
    unobserved: UnobservedModel,
    request: Sequence[BaseMessage],
    options: Mapping[str, Any],
    limit: TokenTimeout,
    watch: StreamWatch | None,
) -> AIMessage:
    """Send one request as `model.ainvoke` does, with its cache and its rate limit.

    Args:
        options: Keyword arguments of the request.
        limit: Receives each token.
        watch: Receives each token; None for a request whose tokens no reader receives.
    """
    model, manager, streams = unobserved
    if watch is not None:
        streams = [watch.gated_stream(stream) for stream in streams]
    relay = TokenRelay(manager, streams, limit, watch)
    relay.begin(request)
    try:
        result = await generate_reply(model, request, options, relay, is_text=is_text_only(request))
    except BaseException as error:
        relay.fail(error)
        raise
    generations: list[Any] = [result.generations]
    relay.end(LLMResult(generations=generations, llm_output=result.llm_output))
    return cast("AIMessage", result.generations[0].message)
