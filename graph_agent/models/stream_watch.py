"""Watches one streamed model request: its time limits, and the part of the reply that has reached the reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from typing import Any, Protocol
from uuid import UUID, uuid4

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata, add_usage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, GenerationChunk, LLMResult
from langchain_core.runnables import RunnableConfig

from graph_agent.base._compat import gate_message_stream
from graph_agent.base._internal.text import common_length
from graph_agent.models.message_gate import MessageGate, MessageStream, message_text
from graph_agent.models.streaming import StreamTap

Reader = Callable[[str, str | None], Awaitable[None]]
"""Receives a chunk of the answer's text and the id of its message."""


class ModelTimeoutError(TimeoutError):
    """A model request exceeded a time limit; the message names the limit and its setting."""


class TokenTimeout(AsyncCallbackHandler):
    """Limits the time of one model request; pass it as a callback, and send the request within `bounded()`.

    `token_s` limits the seconds to the first token and between tokens; without streaming, to the end of the reply.
    `total_s` limits all of it. None is no limit.
    """

    run_inline = True
    """Avoids a task per token."""

    def __init__(self, token_s: float | None, total_s: float | None = None) -> None:
        self._token_s = token_s
        self._total_s = total_s
        self._task: asyncio.Task[Any] | None = None
        """The task that waits; None outside `waiting`."""
        self._expired = False
        """Whether the wait was cancelled because a limit was exceeded."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._since = 0.0
        """Time of the newest token, or of the begin of the wait for the first."""
        self._ends_at: float | None = None
        self._tokens = 0
        self._paused = False

    def begin(self) -> None:
        """Start the limits of a request that is sent now."""
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._ends_at = None if self._total_s is None else self._since + self._total_s
        self._tokens = 0

    def bounded(self) -> AbstractAsyncContextManager[None]:
        """Start the limits; a body, which receives the whole reply, that exceeds one raises `ModelTimeoutError`."""
        self.begin()
        return self.waiting()

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Limit a body that waits for the next token after `begin()`; `ModelTimeoutError` if it exceeds a limit."""
        assert self._loop is not None
        self._since = self._loop.time()
        task = asyncio.current_task()
        if (limit := self._next_limit()) is None or task is None:
            yield
            return
        before, self._task, self._expired = task.cancelling(), task, False
        # Until it is due, even a cancelled timer keeps its context, and with this one the session's history.
        self._timer = self._loop.call_at(limit, self._check, context=Context())
        try:
            yield
        except asyncio.CancelledError as error:
            if self._expired and task.cancelling() <= before + 1:
                raise ModelTimeoutError(self._exceeded_limit()) from error
            raise
        finally:
            self._task = None
            self._timer.cancel()
            if self._expired:
                task.uncancel()

    def restart(self) -> None:
        """Restart the time to the next token; callable from any thread."""
        self._tokens += 1
        if self._loop is not None:
            self._since = self._loop.time()

    def pause(self) -> None:
        """Suspend `token_s` until `resume()`, while a reader processes a token."""
        self._paused = True

    def resume(self) -> None:
        """End `pause()`, and restart the time to the next token."""
        self._paused = False
        if self._loop is not None:
            self._since = self._loop.time()

    def _check(self) -> None:
        # One timer a request, as to move a timer at each token costs more than the rest of this class. It cancels at
        # once, as `asyncio.timeout` does: a token that arrives in the same iteration of the loop comes too late.
        assert self._loop is not None
        now, limit = self._loop.time(), self._next_limit()
        if limit is None or limit > now:
            self._timer = self._loop.call_at(limit or now + (self._token_s or 0), self._check, context=Context())
        elif self._task is not None:
            self._expired = True
            self._task.cancel()

    def _next_limit(self) -> float | None:
        """Return the time at which a limit is exceeded, if no token comes; None for never."""
        if self._token_s is None or self._paused:
            return self._ends_at
        next_token_at = self._since + self._token_s
        return next_token_at if self._ends_at is None else min(next_token_at, self._ends_at)

    def _exceeded_limit(self) -> str:
        assert self._loop is not None
        if self._ends_at is not None and self._loop.time() >= self._ends_at:
            return f"the reply was not complete after {self._total_s:g} s (model_total_timeout_s)"
        if self._tokens:
            return f"no further token came for {self._token_s:g} s (model_timeout_s)"
        return f"no token came for {self._token_s:g} s (model_timeout_s)"

    async def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        """Do nothing; without this method LangChain would serialize the whole request for `on_llm_start`."""

    def receive(self, message: BaseMessage) -> None:
        """Restart the time to the next token, which is in `message`."""
        self.restart()

    async def on_llm_new_token(
        self, *_: Any, chunk: GenerationChunk | ChatGenerationChunk | None = None, **__: Any
    ) -> None:
        """Restart the time to the next token."""
        if isinstance(chunk, ChatGenerationChunk):
            self.receive(chunk.message)
        else:
            self.restart()

    async def on_stream_event(self, *_: Any, **__: Any) -> None:
        """Restart the time to the next token."""
        self.restart()


class Visibility(Protocol):
    """Decides which part of an incomplete reply may be shown. One object serves one reply."""

    def part(self, text: str) -> tuple[int, int]:
        """Return the start and end of the text that may be shown; the end never decreases."""
        ...

    def extends(self, text: str) -> bool:
        """Whether `text`, added to a reply of which everything up to its end is shown, may be shown at once.

        False if only `part` can decide it. Each text is passed to one of the two methods.
        """
        ...


class StreamWatch(AsyncCallbackHandler):
    """Records the part of a reply that has reached the reader, in case the reply is cut off.

    `visibility` makes a filter that withholds a part; call `finish` then for the complete reply. None shows each token.
    """

    run_inline = True
    """Avoids a task per token."""

    def __init__(self, visibility: Callable[[], Visibility] | None = None) -> None:
        self.seen = False
        """Whether any text has reached the reader."""
        self.id: str | None = None
        """Id of the message; None before its first token."""
        self.reported: UsageMetadata | None = None
        """Usage that the provider has reported; None before, and most providers report it at the end."""
        self.is_quiet = False
        """Whether the reply is withheld from the reader, which receives the answer at its end."""
        self.sent: tuple[Sequence[BaseMessage], Sequence[Any]] = (), ()
        """Messages and tools of the newest request that was answered; both empty before, and without a request."""
        self.replaced: list[str] = []
        """Texts that have reached the reader and that middleware or a hook has replaced."""
        self.is_answer = False
        """Whether the reply, to a request with a schema, is an answer, so that its text holds no calls."""
        self.limit = TokenTimeout(None)
        """The time limit of the request, paused while a reader processes a chunk."""
        self._received: list[str] = []
        self._received_length = 0
        self._shown: list[str] = []
        self._shown_length = 0
        self._new_visibility = visibility
        self._visibility = visibility() if visibility is not None else None
        self._begin = 0
        self._gates: list[MessageGate] = []
        self._by_chunk = False

    @property
    def text(self) -> str:
        """The text that has reached the reader."""
        return _joined(self._shown)

    @property
    def received(self) -> str:
        """The text of the reply so far, including withheld text."""
        return _joined(self._received)

    def gated(self, config: RunnableConfig) -> RunnableConfig:
        """Add a gate for the message stream to the config of a model call, if there is a filter."""
        if self._new_visibility is None:
            return config
        return gate_message_stream(config, self._gate)

    def gated_stream(self, stream: MessageStream) -> MessageStream:
        """Return a message stream with a gate, if there is a filter."""
        return stream if self._new_visibility is None else stream.gated(self._gate)

    def _gate(self, send: Callable[[Any], None], seen: set[int | str]) -> MessageGate:
        gate = MessageGate(send, seen)
        self._gates.append(gate)
        return gate

    async def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], **_: Any
    ) -> None:
        """Start a new reply."""
        self.begin()

    def begin(self) -> None:
        """Start a new reply; drop the unread text of a failed attempt."""
        if self.seen or self._new_visibility is None:
            return
        self._visibility = self._new_visibility()
        self._received, self._received_length = [], 0
        for gate in self._gates:
            gate.drop()

    async def on_llm_new_token(
        self,
        token: str | list[str | dict[str, Any]],
        *,
        chunk: GenerationChunk | ChatGenerationChunk | None = None,
        **_: Any,
    ) -> None:
        """Record one token."""
        if not isinstance(chunk, ChatGenerationChunk):
            self.seen = self.seen or self._visibility is None
        elif new := self.receive(chunk.message):
            await self.forward(new)

    def receive(self, message: BaseMessage) -> str:
        """Record one token; return the text that may be shown from now on, which the caller passes to `forward`."""
        self._by_chunk = True
        self.id = message.id or self.id
        if isinstance(message, AIMessageChunk) and message.usage_metadata:
            self.reported = add_usage(self.reported, message.usage_metadata)
        return self._receive(message_text(message))

    async def on_stream_event(self, event: Any, **_: Any) -> None:
        """Record one event of a reply streamed for `stream_events(version="v3")`."""
        # Most models also report each chunk by `on_llm_new_token`.
        if not self._by_chunk:
            if event.get("event") == "message-start":
                self.id = event.get("id") or self.id
            text = str(event["delta"].get("text", "")) if event.get("event") == "content-block-delta" else ""
            if new := self._receive(text):
                await self.forward(new)

    def _receive(self, text: str) -> str:
        everything_is_shown = self.seen and self._begin + self._shown_length == self._received_length
        self._received.append(text)
        self._received_length += len(text)
        if self._visibility is None:
            self.seen = True
            self._shown.append(text)
            return text
        if not text:
            return ""
        if everything_is_shown and self._visibility.extends(text):
            self._show(self._begin, text)
            return text
        begin, end = self._visibility.part(self.received)
        new = self.received[begin + self._shown_length : end]
        self._show(begin, new)
        return new

    def _show(self, begin: int, new: str) -> None:
        if not new:
            return
        self._begin, self.seen = begin, True
        self._shown.append(new)
        self._shown_length += len(new)
        for gate in self._gates:
            gate.show(begin, begin + self._shown_length)

    async def receive_whole(self, reply: str, id_: str | None) -> None:
        """Show a reply that was not streamed to a reader that receives whole replies; does nothing here."""

    def settle(self, reply: AIMessage) -> AIMessage:
        """Return a reply as middleware left it, under another id if its text replaces the shown one; see `drop`."""
        if not (shown := self.text) or shown in reply.text:
            return reply
        self.drop()
        return reply.model_copy(update={"id": str(uuid4())})

    def drop(self) -> list[str]:
        """Move the shown text to `replaced`, and return that: another message follows, which is not streamed."""
        if shown := self.text:
            self.replaced.append(shown)
        for gate in self._gates:
            gate.drop()
        self._gates, self.seen, self.id, self.is_quiet = [], False, None, True
        self._received, self._received_length, self._shown, self._shown_length, self._begin = [], 0, [], 0, 0
        return self.replaced

    async def finish(self, reply: str, shown: str | None, id_: str | None = None) -> None:
        """Show the rest of a complete reply, up to its part for the reader; None drops it, including its calls."""
        if self._visibility is None:
            return
        if shown is None:
            for gate in self._gates:
                gate.drop()
            return
        # Without streaming no text was received before.
        streamed, self._received, self._received_length = self._received_length > 0, [reply], len(reply)
        begin = self._begin if self._shown_length else max(0, reply.find(shown))
        end = begin + max(common_length(reply[begin:], shown), self._shown_length)
        if streamed and (new := reply[begin + self._shown_length : end]):
            self._show(begin, new)
            await self.forward(new)
        for gate in self._gates:
            gate.show(begin, end)
            gate.close()

    async def forward(self, text: str) -> None:
        """Forward newly shown text; does nothing here."""


Forwarder = Callable[[Callable[[], Visibility]], StreamWatch]
"""Builds the watch that forwards one reply to a reader; receives the filter of the reply."""


def _joined(pieces: list[str]) -> str:
    """Return the text of pieces, and replace them by it: a text that grows is joined only when it is read."""
    if len(pieces) > 1:
        pieces[:] = ["".join(pieces)]
    return pieces[0] if pieces else ""


class ReplyForwarder(StreamWatch):
    """Forwards the text of a reply to a reader that the graph's own stream does not serve.

    A reply that is not streamed is forwarded at its end; the reader receives the same text as of a streamed one. A slow
    reader delays the reply.
    """

    def __init__(self, reader: Reader, visibility: Callable[[], Visibility] | None = None) -> None:
        super().__init__(visibility)
        self._reader = reader

    async def forward(self, text: str) -> None:
        """Pass newly shown text to the reader."""
        self.limit.pause()
        try:
            await self._reader(text, self.id)
        finally:
            self.limit.resume()

    async def receive_whole(self, reply: str, id_: str | None) -> None:
        """Forward a reply that was not streamed, except for the part that its filter withholds."""
        if not self.is_quiet and not self._received_length:
            self.id = self.id or id_
            if new := self._receive(reply):
                await self.forward(new)

    async def finish(self, reply: str, shown: str | None, id_: str | None = None) -> None:
        """See `StreamWatch.finish`; the reader also receives text behind a call that the reply contains as text."""
        if self.is_quiet:
            return
        await self.receive_whole(reply, id_)
        await super().finish(reply, shown)
        before = self.text
        if shown is not None and shown.startswith(before) and (rest := shown[len(before) :]):
            self._shown.append(rest)
            self.seen = True
            await self.forward(rest)


class StreamForwarder(StreamTap, ReplyForwarder):
    """Makes the model stream, and forwards each token; the graph's own stream takes several times as long for it."""


_REASONING_NODES = ("plan", "finalize")


def reasoning_text(message: AIMessage) -> str:
    """Return the text of a message's reasoning; empty if there is none, or if the provider shows none."""
    if isinstance(message.content, str) and not message.additional_kwargs:
        return ""
    return "".join(
        str(block.get("reasoning") or "") for block in message.content_blocks if block["type"] == "reasoning"
    )


class ReasoningReader(AsyncCallbackHandler):
    """Passes on the reasoning of the agent's model calls, without those of its delegates, hooks and tools."""

    run_inline = True
    """Avoids a task per token."""

    def __init__(self, emit: Callable[[str], Awaitable[None]]) -> None:
        self._emit = emit
        self._own: set[UUID] = set()
        self._streamed: set[UUID] = set()

    async def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Record a call of the agent's own nodes."""
        place = metadata or {}
        if place.get("langgraph_node") in _REASONING_NODES and "|" not in str(place.get("langgraph_checkpoint_ns", "")):
            self._own.add(run_id)

    async def on_llm_new_token(
        self, *_: Any, chunk: GenerationChunk | ChatGenerationChunk | None = None, run_id: UUID, **__: Any
    ) -> None:
        """Pass on the reasoning of one token."""
        message = chunk.message if isinstance(chunk, ChatGenerationChunk) and run_id in self._own else None
        if isinstance(message, AIMessageChunk) and (text := reasoning_text(message)):
            self._streamed.add(run_id)
            await self._emit(text)

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """Pass on the reasoning of a reply that was not streamed."""
        if run_id not in self._own or run_id in self._streamed:
            return
        for generation in response.generations[0]:
            message = generation.message if isinstance(generation, ChatGeneration) else None
            if isinstance(message, AIMessage) and (text := reasoning_text(message)):
                await self._emit(text)
