"""Sends model requests: without callbacks where nothing observes them, and again after transient errors.

A request is never repeated after a token that has reached a reader. LangChain's callbacks cost more than the rest of a
request: metadata, ids and a copy of the messages for tracing are made, whether or not a handler exists, and each token
makes a coroutine for each handler.

Model calls of user code, such as middleware, are counted, and kept out of the run's message stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import random
import traceback
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, cast
from uuid import UUID

import anyio.lowlevel
from langchain_core.callbacks import (
    AsyncCallbackManager,
    AsyncCallbackManagerForLLMRun,
    BaseCallbackHandler,
    BaseCallbackManager,
)
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, GenerationChunk, LLMResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs, set_config_context, var_child_runnable_config
from langchain_core.utils.uuid import uuid7

from graph_agent.base._compat import has_own_entry_point, message_handlers, traced_parameters
from graph_agent.base._compat.replies import generate_reply, reads_stream
from graph_agent.base._internal.blocking_replies import blocking_replies
from graph_agent.base._internal.failure_log import get_logger, log_failure
from graph_agent.base._internal.sync_bridge import await_in_task, call_in_thread
from graph_agent.base.finish import mark_incomplete
from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.usage import TimedRequest, record_cut_off
from graph_agent.models import streaming
from graph_agent.models.chunk_listener import ChunkListener, chunk_listener
from graph_agent.models.errors import LONGEST_WAIT_S, classify_model_error
from graph_agent.models.message_gate import MessageStream
from graph_agent.models.reply_reader import ReplyReader
from graph_agent.models.sanitize import is_text_only
from graph_agent.models.stream_watch import ModelTimeoutError, StreamWatch, TokenTimeout
from graph_agent.models.waits import may_retry, requested_wait_s
from graph_agent.models.wire.answer_decoder import AnswerDecoder
from graph_agent.models.wire.fragments import with_blank_arguments
from graph_agent.models.wire.openai_stream import joined_text
from graph_agent.models.wire.usage import reports_differences

logger = get_logger(__name__)
_NO_CONTEXT = contextlib.nullcontext()
M = TypeVar("M", bound=BaseMessage)


class TokenRelay(AsyncCallbackManagerForLLMRun):
    """Passes the tokens of one request to its time limit, watch and streams, without LangChain's callback dispatch.

    It is LangChain's callback manager of the request. Tokens without a chunk, which a model that does not stream may
    report, and all other events are dispatched by LangChain.

    Args:
        manager: The manager whose tags, metadata and parent run this one takes over.
        streams: Message streams of the run that receive each token.
        limit: Restarted by each token.
        watch: Records the text that reaches the reader; None if there is no reader.
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
        """Report the start of the request to the streams, and start a new reply in the watch, if any."""
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
        """Pass one token to limit, watch and streams, and the text that may be shown now to the watch's reader, whose
        exceptions are logged. A token without a message is left to LangChain.
        """
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
        """Report the complete reply to the streams."""
        for stream in self._streams:
            stream.end(self, result)

    def fail(self, error: BaseException) -> None:
        """Report the error that ended the request to the streams."""
        for stream in self._streams:
            stream.fail(self, error)


class UnobservedModel(NamedTuple):
    """How to send a request without LangChain's callbacks: only the run's message streams observe it."""

    model: BaseChatModel
    manager: AsyncCallbackManager
    """The callback manager that LangChain would use for the request."""
    streams: Sequence[MessageStream]
    """The run's message streams: one for each handler of `manager`, empty if the run is not streamed by messages."""


def unobserved_model(
    runnable: object, options: Mapping[str, Any], config: RunnableConfig | None
) -> UnobservedModel | None:
    """Return how to send a request without LangChain's callbacks; None if the callbacks are needed.

    They are needed if another handler than the message stream observes the call, if `runnable` is no plain chat model,
    or if its `ainvoke` or a similar method is overridden, e.g. patched by a tracer.

    Args:
        runnable: The model, or anything that wraps one.
        options: Keyword arguments of the call, traced in the stream's metadata.
        config: The call's config; the callbacks of the enclosing run apply where it has none.
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
    limit: _Attempt,
    watch: StreamWatch | None,
) -> AIMessage:
    """Send one request as `model.ainvoke` would, including its cache and rate limiter, without callback dispatch.

    A reply with the id of a message of the request receives a new id.

    Args:
        unobserved: The model and the receivers of its stream.
        request: The messages.
        options: Keyword arguments of the call.
        limit: Restarted by each token; gives the reply its id.
        watch: Records each token if a stream reads the reply, or if the watch forwards it to a reader.

    Raises:
        Exception: The model's error.
    """
    model, manager, streams = unobserved
    is_read = bool(streams) or isinstance(watch, streaming.StreamTap)
    if not is_read:
        watch = None
    if watch is not None:
        streams = [watch.gated_stream(stream) for stream in streams]
    relay = TokenRelay(manager, streams, limit, watch)
    limit.run_id = str(relay.run_id)
    relay.begin(request)
    on_chunk = limit.receive if not is_read and isinstance(limit, streaming.StreamTap) else None
    try:
        is_joined = on_chunk and limit.listener is None  # a listener reads calls from text while it arrives
        with joined_text(limit.restart) if is_joined else _NO_CONTEXT:
            is_text = is_text_only(request)
            result = await generate_reply(model, request, options, relay, is_text=is_text, on_chunk=on_chunk)
    except BaseException as error:
        relay.fail(error)
        raise
    first = result.generations[0]
    if (reply := limit.with_free_id(first.message)) is not first.message:
        first = first.model_copy(update={"message": reply})
    if streams:
        generations: list[Any] = [[first, *result.generations[1:]]]
        relay.end(LLMResult(generations=generations, llm_output=result.llm_output))
    return cast("AIMessage", reply)


QUIET: RunnableConfig = {"tags": ["nostream"]}
"""Keeps the tokens of a model call out of the run's message stream."""


async def ask(
    runnable: Runnable[LanguageModelInput, AIMessage],
    request: Sequence[BaseMessage],
    options: Mapping[str, Any],
    settings: LoopConfig,
    *,
    config: RunnableConfig | None = QUIET,
    watch: StreamWatch | None = None,
    decoder: AnswerDecoder | None = None,
) -> AIMessage:
    """Send one request and return the reply; retry after transient errors, with exponential, jittered waits.

    Nothing is sent again after a token has reached a reader, or once the provider has run a tool. A server that ignores
    streaming is asked again without it, which is no retry and is remembered for the model. Time, tokens and outcome of
    each attempt are recorded for telemetry, also after a cancellation.

    Args:
        runnable: The chat model, or a runnable that wraps one.
        request: The messages, in the form that the model accepts.
        options: Keyword arguments of the call, e.g. `tools`.
        settings: The number of retries, and the time limits of each attempt. A timeout is never retried.
        config: Config of the call; its tokens are not passed to `watch`. `QUIET` also keeps them out of the run's
            message stream. With None they are streamed to both.
        watch: Records the text that has reached the reader; None if the caller does not need it.
        decoder: Rewrites the text of each chunk before a reader receives it; None to leave it unchanged.

    Raises:
        ModelTimeoutError: A limit in `settings` was exceeded.
        Exception: The provider's error, if it is not transient, or nothing may be sent again.
    """
    watch = watch or StreamWatch()
    given, runnable = runnable, streaming.without_refused_stream(runnable)
    listener = chunk_listener.get()
    is_streamed = (
        streaming.streams_always(runnable, options) if listener is None else streaming.may_stream(runnable, options)
    )
    new_limit = _StreamedAttempt if is_streamed else _Attempt
    watch.limit = limit = new_limit(
        given, request, options, settings, decoder=decoder, sums_usage=reports_differences(runnable)
    )
    if listener is not None:
        limit.listener = listener
    watch.is_quiet = watch.is_quiet or config is not None
    attempt, is_stream_refused = 0, False
    unobserved = unobserved_model(runnable, options, config)
    while True:
        try:
            limit.begin()
            with limit:
                if unobserved is None:
                    sent = runnable.ainvoke(list(request), _observed(runnable, config, limit, watch), **options)
                else:
                    sent = request_unobserved(unobserved, request, options, limit, watch if config is None else None)
                reply = await _cancellable(sent)
            reply = limit.read(limit.with_free_id(reply))
            limit.timed.end(reply)
            # Remembered only now: the whole reply proves that streaming was the cause.
            if is_stream_refused:
                streaming.remember_unstreamed(given)
            return reply
        except asyncio.CancelledError:
            limit.timed.end(record_cut_off(runnable, request, options, watch.received, watch.reported), "cancelled")
            raise
        except Exception as error:
            limit.timed.end(None, classify_model_error(error))
            if not watch.is_committed and streaming.may_refuse_stream(runnable, options, error):
                # Not counted as an attempt, because the model has not failed.
                is_stream_refused, runnable = True, streaming.unstreamed(runnable)
                unobserved = unobserved_model(runnable, options, config)
                continue
            if isinstance(error, ModelTimeoutError):
                raise  # the same server would need as long again
            if watch.is_committed or not await pause_before_retry(error, attempt, settings.model_retries):
                raise
        attempt += 1


class _Attempt(TokenTimeout):
    """Time limit, telemetry and chunk reader of the attempts of one request; `begin` resets them for the next one."""

    listener: ChunkListener | None = None
    """Follows the chunks of the reply; None if nothing does."""

    def __init__(
        self,
        model: object,
        request: Sequence[BaseMessage],
        options: Mapping[str, Any],
        settings: LoopConfig,
        *,
        decoder: AnswerDecoder | None = None,
        sums_usage: bool = False,
    ) -> None:
        super().__init__(settings.model_timeout_s, settings.model_total_timeout_s)
        self._model = model
        self._decoder = decoder
        self._request = request
        self._options = options
        self._sums_usage = sums_usage
        self.run_id = ""
        """LangChain's run id, which is part of the message ids that LangChain generates."""
        self.streamed = False
        self.timed: TimedRequest

    def begin(self) -> None:
        super().begin()
        if self.listener is not None:
            self.listener.begin()
        # Made with the first chunk, because most replies of a run without a reader are whole.
        self._reader: ReplyReader | None = None
        self._readers: dict[UUID | None, ReplyReader] = {}
        self._newest: BaseMessage | None = None
        if self._decoder is not None:
            self._decoder.begin()
        self.__dict__.pop("_free_id", None)
        self.streamed = False
        self.timed = TimedRequest.to(self._model, self._request, self._options)

    def restart(self) -> None:
        if not self._tokens:
            self.timed.receive()
        super().restart()

    async def on_llm_new_token(self, *args: Any, **kwargs: Any) -> None:
        self.streamed = True
        self._reader = self._reader_of(kwargs.get("run_id"))
        await super().on_llm_new_token(*args, **kwargs)

    async def on_stream_event(self, event: Any, *, run_id: UUID | None = None, **_: Any) -> None:
        self.restart()
        self._reader_of(run_id).receive_event(event)

    def _reader_of(self, run_id: UUID | None) -> ReplyReader:
        """Return the chunk reader of a LangChain run, made at the first call. A model may call another, whose chunks
        come here.
        """
        if (reader := self._readers.get(run_id)) is None:
            reader = self._readers[run_id] = ReplyReader(sums_usage=self._sums_usage)
        return reader

    @cached_property
    def _free_id(self) -> str:
        """Id for the reply of this attempt if its own one is taken."""
        return str(uuid.uuid4())

    @cached_property
    def _taken(self) -> Set[str | None]:
        """Ids of the request's messages."""
        return {each.id for each in self._request}

    def with_free_id(self, reply: M) -> M:
        """Return the reply with a new id if a message of the request has the same one; otherwise the same object.

        A reply from a cache has the id of its first use, under which LangGraph's reducer would overwrite that message.
        """
        return reply.model_copy(update={"id": self._free_id}) if self._is_taken(reply.id) else reply

    def read(self, reply: AIMessage) -> AIMessage:
        """Return the complete reply with exactly the calls that were streamed (see `ReplyReader.read`).

        A reply whose stream may have ended inside a call is marked in its metadata; see `mark_incomplete`.
        """
        known = [*self._readers.values()]
        readers = dict.fromkeys(known if self._reader is None else [self._reader, *known])
        arguments = [raw for reader in readers for raw in reader.calls.arguments]
        reply = mark_incomplete(reply, arguments, streamed=self.streamed)
        for reader in readers:
            reply = reader.read(reply)
        return reply if readers else with_blank_arguments(reply)

    def _is_taken(self, id_: str | None) -> bool:
        # The ids of a long request are collected only for an id that LangChain has not just made.
        is_new = id_ is None or (self.run_id and self.run_id in id_)
        return not is_new and id_ in self._taken

    def receive(self, message: BaseMessage) -> None:
        self.restart()
        self.streamed = True
        if message is self._newest:
            return  # of a model that passes on the chunks of another one
        self._newest = message
        # In place: LangChain makes the reply from these chunks, and the message stream has queued them.
        if self._reader is None:
            self._reader = ReplyReader(sums_usage=self._sums_usage)
        self._reader.receive(message)
        if self._decoder is not None and isinstance(content := message.content, str) and content:
            message.content = self._decoder(content)
        if self._is_taken(message.id):
            message.id = self._free_id
        if self.listener is not None:
            self.listener.receive(message)


_TAKES_FIRST = {"BaseChatModel.ainvoke", "request_unobserved"}
"""Functions in which an `IndexError` means a reply without choices, which some compatible servers send on failure."""


async def _cancellable(request: Coroutine[Any, Any, AIMessage]) -> AIMessage:
    """Await a request so that a cancellation of the current task always raises `CancelledError`.

    This holds even if the model suppresses the cancellation or raises another exception. Other exceptions are
    translated: a `CancelledError` that the model raises by itself, and a reply without choices, become
    `ConnectionAbortedError` (transient); `SystemExit` becomes `RuntimeError`.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    stops: list[Callable[[], None]] = []
    outer = blocking_replies.set(stops)
    try:
        return await request
    except asyncio.CancelledError as error:
        if task.cancelling() == before:
            # Of the model itself, as a gRPC client raises it when its channel closes.
            raise ConnectionAbortedError("the model's client cancelled the request") from error
        for stop in stops:
            stop()
        # The error, which the cancelled task keeps, would keep the stream and its connection until a collection of
        # cycles: LangChain reads the stream of a client that blocks, as boto3's, in threads, and leaves it to be freed.
        traceback.clear_frames(error.__traceback__)
        raise
    except SystemExit as error:
        # asyncio would end the event loop with it, and a server.
        raise RuntimeError(f"the model's client raised SystemExit({error.code!r})") from error
    except IndexError as error:
        *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_qualname in _TAKES_FIRST:
            raise ConnectionAbortedError("the provider's reply has no choices") from error
        raise
    finally:
        blocking_replies.reset(outer)
        if task.cancelling() > before:
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise asyncio.CancelledError


class _StreamedAttempt(streaming.StreamTap, _Attempt):
    """An `_Attempt` whose presence makes LangChain stream the reply, even if no reader wants the tokens."""


def _observed(
    runnable: object, config: RunnableConfig | None, limit: TokenTimeout, watch: StreamWatch
) -> RunnableConfig:
    """Return the call's config with `limit` as callback; a given `config` gets nothing else.

    With None, `watch` is a callback, too, and its filter applies to the run's message stream, unless `limit` is a
    `StreamTap` and nothing reads the reply.
    """
    if config is not None or (isinstance(limit, streaming.StreamTap) and not _has_reader(runnable, watch)):
        return _with_callbacks(config, limit)
    return watch.gated(_with_callbacks(config, limit, watch))


def _has_reader(runnable: object, watch: StreamWatch) -> bool:
    """Whether any reader receives the tokens of a request: the watch, or a callback handler of the run."""
    if isinstance(watch, streaming.StreamTap) or not isinstance(runnable, BaseChatModel):
        return True
    callbacks = (var_child_runnable_config.get() or {}).get("callbacks")
    manager = AsyncCallbackManager.configure(callbacks, runnable.callbacks, runnable.verbose)
    return any(reads_stream(handler) for handler in manager.handlers)


def _with_callbacks(
    config: RunnableConfig | None, first: BaseCallbackHandler, *last: BaseCallbackHandler
) -> RunnableConfig:
    """Return the config with `first` before all other callbacks and `last` after them.

    A list of callbacks in `config` replaces the run's; otherwise the run's are kept. `first` sanitizes the chunks in
    place.
    """
    own = (config or {}).get("callbacks")
    if isinstance(own, list):
        return {**(config or {}), "callbacks": [first, *own, *last]}
    # An explicit list of callbacks would replace those of the run; merging keeps both.
    merged = merge_configs(ensure_config(), config, {"callbacks": [first, *last]})
    if isinstance(manager := merged.get("callbacks"), BaseCallbackManager):
        manager.handlers.sort(key=lambda handler: handler is not first)
    return merged


async def pause_before_retry(error: Exception, attempt: int, retries: int) -> bool:
    """Wait before the next attempt and return True; return False at once if `may_retry` permits none.

    Args:
        error: The error of the failed attempt.
        attempt: Number of the failed attempt, from 0.
        retries: Maximum attempts after the first.
    """
    if not may_retry(error, attempt, retries):
        return False
    await asyncio.sleep(wait_s(attempt, requested_wait_s(error, attempt)))
    return True


def wait_s(attempt: int, asked_s: float | None) -> float:
    """Return the seconds to wait after attempt number `attempt` (from 0).

    This is the provider's requested delay `asked_s`, at most `LONGEST_WAIT_S`. With `asked_s=None` it is 0.5, 1, 2, …
    seconds, at most `LONGEST_WAIT_S`, times a random factor between 0.5 and 1.
    """
    if asked_s is not None:
        return min(asked_s, LONGEST_WAIT_S)
    longest: float = min(0.5 * 2**attempt, LONGEST_WAIT_S)
    return longest * random.uniform(0.5, 1)


class Meter(BaseCallbackHandler):
    """Callback handler that passes the first message of each model reply to `on_reply`."""

    run_inline = True

    def __init__(self, on_reply: Callable[[AIMessage], None]) -> None:
        self._on_reply = on_reply

    def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        """Pass the first message of each prompt's reply on; text completions are ignored."""
        for generations in response.generations:
            first = generations[0] if generations else None
            if isinstance(first, ChatGeneration) and isinstance(first.message, AIMessage):
                self._on_reply(first.message)


@contextlib.contextmanager
def side_call_context(on_reply: Callable[[AIMessage], None]) -> Iterator[contextvars.Context]:
    """Yield a context in which user code, such as middleware, may call models.

    Each reply of such a model is passed to `on_reply`, and its tokens stay out of the run's message stream.
    """
    config = merge_configs(ensure_config(), QUIET, {"callbacks": [Meter(on_reply)]})
    with set_config_context(config) as context:
        # A copy: an abandoned thread may still use it after this context has exited.
        yield context.copy()


async def run_side_call(method: Callable[..., Any], *args: Any, on_reply: Callable[[AIMessage], None]) -> Any:
    """Run user code that may call models, and return its result. Exceptions of the code are raised.

    A coroutine function runs in a task. Any other function runs in a thread, because it may block; an awaitable that it
    returns is awaited.

    Args:
        method: The function.
        args: Its arguments.
        on_reply: Receives each reply of a model that the code calls.
    """
    with side_call_context(on_reply) as context:
        if inspect.iscoroutinefunction(method):
            return await await_in_task(method(*args), context)
        made = await call_in_thread(context.run, method, *args)
        if not inspect.isawaitable(made):
            return made
        return await await_in_task(made, context)
