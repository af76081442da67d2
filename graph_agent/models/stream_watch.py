"""Watches one streamed model request: its time limits, and the part of the reply that has reached the reader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context, ContextVar
from typing import Any, Protocol
from uuid import UUID, uuid4

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata, add_usage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, GenerationChunk, LLMResult
from langchain_core.runnables import RunnableConfig

from graph_agent.base._compat import gate_message_stream
from graph_agent.base._internal.text import common_length, reasoning_text
from graph_agent.models.message_gate import MessageGate, MessageStream, message_text
from graph_agent.models.streaming import StreamTap

Reader = Callable[[str, str | None], Awaitable[None]]
"""Receives a piece of the answer's text and the id of its message; None as the id if the provider gave none yet."""


class ModelTimeoutError(TimeoutError):
    """A model request exceeded a time limit; the message names the limit and its setting."""


class TokenTimeout(AsyncCallbackHandler):
    """Time limits of one model request: pass it as a callback, and await the reply, or each token, in a `with` block.

    Call `begin()` when the request is sent, before the first block. A block is cancelled at a limit, and then raises
    `ModelTimeoutError`; a cancellation from outside still raises `CancelledError`.

    Args:
        token_s: Seconds to the first token and between two tokens; of a reply that is not streamed, to its end. None
            for no limit.
        total_s: Seconds for the whole request. None for no limit.
    """

    run_inline = True
    """LangChain calls the handler directly, without creating a task for each token."""

    def __init__(self, token_s: float | None, total_s: float | None = None) -> None:
        self._token_s = token_s
        self._total_s = total_s
        self._task: asyncio.Task[Any] | None = None
        """The task to cancel when a limit is exceeded; None outside of a block."""
        self._cancelled_before = 0
        """How often that task had been cancelled at the start of the block."""
        self._expired = False
        """Whether this object cancelled the task because a limit was exceeded."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._since = 0.0
        """Loop time of the newest token, or of the beginning of the wait for the first one."""
        self._ends_at: float | None = None
        self._tokens = 0
        self._paused_at: float | None = None

    def begin(self) -> None:
        """Start both limits, reset the token count, and make this the limit that readers of the reply suspend; call it
        when the request is sent.
        """
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._ends_at = None if self._total_s is None else self._since + self._total_s
        self._tokens = 0
        _current_limit.set(self)

    def __enter__(self) -> None:
        assert self._loop is not None
        self._since = self._loop.time()
        task = asyncio.current_task()
        if (limit := self._next_limit()) is None or task is None:
            return
        self._task, self._cancelled_before, self._expired = task, task.cancelling(), False
        # Until it is due, even a cancelled timer keeps its context, and with this one the session's history.
        self._timer = self._loop.call_at(limit, self._check, context=Context())

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        task, self._task = self._task, None
        if task is None or self._timer is None:
            return
        self._timer.cancel()
        if not self._expired:
            return
        # A further cancellation, from outside, takes precedence over the limit.
        is_of_limit = task.cancelling() <= self._cancelled_before + 1
        task.uncancel()
        if isinstance(error, asyncio.CancelledError) and is_of_limit:
            raise ModelTimeoutError(self._exceeded_limit()) from error

    def restart(self) -> None:
        """Count a token, and restart the limit between tokens. May be called from any thread."""
        self._tokens += 1
        if self._loop is not None:
            self._since = self._loop.time()

    def pause(self) -> None:
        """Suspend both limits until `resume()`, e.g. while a slow reader processes a token."""
        self._paused_at = None if self._loop is None else self._loop.time()

    def resume(self) -> None:
        """End `pause()`, restart the limit between tokens, and extend the total limit by the time of the pause."""
        if self._loop is not None:
            self._since = self._loop.time()
            if self._ends_at is not None and self._paused_at is not None:
                self._ends_at += self._since - self._paused_at
        self._paused_at = None

    async def suspended(self, work: Awaitable[None]) -> None:
        """Await work of a reply's reader, such as a slow write; its time counts for no limit."""
        self.pause()
        try:
            await work
        finally:
            self.resume()

    def _check(self) -> None:
        """Cancel the task that waits if a limit is exceeded; else set the timer for the next check."""
        # One timer a request, as to move a timer at each token costs more than the rest of this class. It cancels at
        # once, as `asyncio.timeout` does: a token that arrives in the same iteration of the loop comes too late.
        assert self._loop is not None
        now, limit = self._loop.time(), self._next_limit()
        if limit is None or limit > now:
            # A pause has no limit; after at most a second, the limits that then apply are read.
            later = now + min(self._token_s or 1.0, 1.0)
            self._timer = self._loop.call_at(limit or later, self._check, context=Context())
        elif self._task is not None:
            self._expired = True
            self._task.cancel()

    def _next_limit(self) -> float | None:
        """Return the loop time at which a limit is exceeded unless a token arrives; None if no limit applies."""
        if self._paused_at is not None:
            return None
        if self._token_s is None:
            return self._ends_at
        next_token_at = self._since + self._token_s
        return next_token_at if self._ends_at is None else min(next_token_at, self._ends_at)

    def _exceeded_limit(self) -> str:
        """Return the limit that was exceeded, in words for the error."""
        assert self._loop is not None
        if self._ends_at is not None and self._loop.time() >= self._ends_at:
            return f"the reply was not complete after {self._total_s:g} s (model_total_timeout_s)"
        if self._tokens:
            return f"no further token came for {self._token_s:g} s (model_timeout_s)"
        return f"no token came for {self._token_s:g} s (model_timeout_s)"

    async def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        """Do nothing. Without this method LangChain would serialize the whole request for `on_llm_start`."""

    def receive(self, message: BaseMessage) -> None:
        """Count `message` as a token and restart the limit between tokens."""
        self.restart()

    async def on_llm_new_token(
        self, *_: Any, chunk: GenerationChunk | ChatGenerationChunk | None = None, **__: Any
    ) -> None:
        """Count a token; LangChain's callback for a streamed chunk, or for a token of a model without chunks."""
        if isinstance(chunk, ChatGenerationChunk):
            self.receive(chunk.message)
        else:
            self.restart()

    async def on_stream_event(self, *_: Any, **__: Any) -> None:
        """Count a token; LangChain's callback for an event of `stream_events(version="v3")`."""
        self.restart()


_UNLIMITED = TokenTimeout(None)
"""The limit of a watch before its request begins; it has no state, because it is never begun."""
_current_limit: ContextVar[TokenTimeout | None] = ContextVar("graph_agent_request_limit", default=None)
"""The time limits of the request that the task sends, for callbacks of the request that wait for a reader."""


def id_of_reply(known: str | None, newest: str | None) -> str | None:
    """Return the id that LangChain gives the whole reply: the provider's, if any chunk has it, else that of the run.

    Args:
        known: The id so far; None before the first chunk.
        newest: The id of the newest chunk.
    """
    return known if known and (newest is None or newest.startswith("lc_run")) else newest


class Visibility(Protocol):
    """Decides how much of an incomplete reply may be shown to the reader. One object serves one reply."""

    def part(self, text: str) -> tuple[int, int]:
        """Return the start and end of the part of `text` that may be shown.

        `text` is the whole reply so far. The end never decreases; start and end are equal while nothing may be shown.
        """
        ...

    def extends(self, text: str) -> bool:
        """Whether `text` may be shown at once, appended to a reply that has been shown up to its end.

        Return False if only `part` can decide. Each new text is passed to `extends` first, then to `part` after False.
        """
        ...


class StreamWatch(AsyncCallbackHandler):
    """Records how much of a reply has reached the reader, so that a cut-off reply can be stored as it was seen.

    Args:
        visibility: Builds the filter that withholds a part of each reply; the caller must then call `finish` with the
            complete reply. None shows every token at once.
    """

    run_inline = True
    """Avoids a task per token."""
    ran_tools = False
    """Whether the provider may have run a tool for the reply; set by the client that offers such tools."""
    continuation: StreamWatch | None = None
    """The watch of the newest request that continues a paused turn; None before one."""
    seen = False
    """Whether any text has reached the reader."""
    id: str | None = None
    """Id of the reply's message; None before its first token."""
    reported: UsageMetadata | None = None
    """Usage that the provider has reported so far; None before.

    Most providers report it at the end of the stream.
    """
    is_quiet = False
    """Whether no tokens are shown, because the reader receives the answer as a whole at its end."""
    sent: tuple[Sequence[BaseMessage], Sequence[Any]] = (), ()
    """Messages and tools of the newest request that was answered; both empty before that."""
    is_answer = False
    """Whether the reply to a request with a schema is an answer, so that its text must not be parsed for calls."""
    _received_length = 0
    _shown_length = 0
    _visibility: Visibility | None = None
    """The filter of the reply, built for its first text; None before it, or without a filter."""
    _begin = 0
    _by_chunk = False

    def __init__(self, visibility: Callable[[], Visibility] | None = None) -> None:
        self.replaced: list[str] = []
        """Texts that reached the reader and were then replaced by middleware or a hook."""
        self.limit = _UNLIMITED
        """The time limit of the running request; paused while a reader processes a chunk."""
        self._received: list[str] = []
        self._shown: list[str] = []
        self._new_visibility = visibility
        self._gates: list[MessageGate] = []

    @property
    def text(self) -> str:
        """The text that has reached the reader."""
        return _joined(self._shown)

    @property
    def received(self) -> str:
        """The text received from the model so far, including withheld text."""
        return _joined(self._received)

    def gated(self, config: RunnableConfig) -> RunnableConfig:
        """Return the config of a model call with a gate (it holds entries back) that applies this watch's filter to the
        run's message stream.

        Returns `config` itself if the watch has no filter.
        """
        if self._new_visibility is None:
            return config
        return gate_message_stream(config, self._gate)

    def gated_stream(self, stream: MessageStream) -> MessageStream:
        """Return a message stream whose entries pass through this watch's filter; `stream` itself without a filter."""
        return stream if self._new_visibility is None else stream.gated(self._gate)

    def _gate(self, send: Callable[[Any], None], seen: set[int | str]) -> MessageGate:
        """Make and record the gate (it holds text back until it may be shown) of one message stream; parameters are
        those of `MessageGate`.
        """
        gate = MessageGate(send, seen)
        self._gates.append(gate)
        return gate

    async def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], **_: Any
    ) -> None:
        """Start a new reply as `begin` does; LangChain's callback for the start of a request."""
        self.begin()

    @property
    def is_committed(self) -> bool:
        """Whether the request must not be sent again: a reader has text of the reply, or the provider ran a tool."""
        return self.seen or self.ran_tools

    def begin(self) -> None:
        """Start a new reply, and discard the text that a failed attempt has sent.

        Does nothing once text of the reply was shown. Without a filter, only the id is discarded.
        """
        if self.seen:
            return
        self.id = None  # that of the failed attempt, which would make the whole reply look like another one
        if self._new_visibility is None:
            return
        self._visibility = None
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
        """Record one token, and pass the text that may now be shown to `forward`; LangChain's callback for a token. A
        token without a message is only noted in `seen`, if the watch has no filter.
        """
        if not isinstance(chunk, ChatGenerationChunk):
            self.seen = self.seen or self._new_visibility is None
            return
        if new := self.receive(chunk.message):
            await self.forward(new)

    def receive(self, message: BaseMessage) -> str:
        """Record one token, its id and its usage; return the text that may be shown now, empty if none.

        The caller must pass that text to `forward`.
        """
        self._by_chunk = True
        # The common case needs no call: the id of each chunk is that of the first one.
        if message.id != self.id:
            self.id = id_of_reply(self.id, message.id)
        if isinstance(message, AIMessageChunk) and message.usage_metadata:
            self.reported = add_usage(self.reported, message.usage_metadata)
        return self._receive(message_text(message))

    async def on_stream_event(self, event: Any, **_: Any) -> None:
        """Record an event of a reply streamed by `stream_events(version="v3")`, and forward the text that may be shown.

        Ignored for a model that also reports its chunks.
        """
        # Most models also report each chunk by `on_llm_new_token`.
        if not self._by_chunk:
            if event.get("event") == "message-start":
                self.id = event.get("id") or self.id
            text = str(event["delta"].get("text", "")) if event.get("event") == "content-block-delta" else ""
            if new := self._receive(text):
                await self.forward(new)

    def _receive(self, text: str) -> str:
        """Add text to the reply, and return the part of the reply that becomes visible by it; may be empty. Without a
        filter, that is the text itself, and the reply counts as seen.
        """
        everything_is_shown = self.seen and self._begin + self._shown_length == self._received_length
        self._received.append(text)
        self._received_length += len(text)
        if self._new_visibility is None:
            self.seen = True
            self._shown.append(text)
            return text
        if not text:
            return ""
        self._visibility = self._visibility or self._new_visibility()
        if everything_is_shown and self._visibility.extends(text):
            self._show(self._begin, text)
            return text
        begin, end = self._visibility.part(self.received)
        new = self.received[begin + self._shown_length : end]
        self._show(begin, new)
        return new

    def _show(self, begin: int, new: str) -> None:
        """Record text as shown, and let the gates of the message streams pass it; does nothing for empty text.

        `begin` is the index in the reply at which all shown text begins.
        """
        if not new:
            return
        self._begin, self.seen = begin, True
        self._shown.append(new)
        self._shown_length += len(new)
        for gate in self._gates:
            gate.show(begin, begin + self._shown_length)

    async def receive_whole(self, reply: str, id_: str | None) -> None:
        """Show a reply that was not streamed, with the id of its message.

        Does nothing here; `WholeReplyWatch` overrides it.
        """

    def settle(self, reply: AIMessage) -> AIMessage:
        """Return a reply that middleware may have changed; under a new id if its text no longer contains the text
        shown.

        In that case `drop` is called, because the changed reply is a new message for the reader. Otherwise, also if no
        text was shown, the same object is returned.
        """
        if not (shown := self.text) or shown in reply.text:
            return reply
        self.drop()
        return reply.model_copy(update={"id": str(uuid4())})

    def drop(self) -> list[str]:
        """Move the text shown to `replaced`, and return `replaced`, the texts so far. The watch is reset and made
        quiet.

        Chunks that wait in the message stream are dropped, and the message that replaces the text is not streamed by
        this watch.
        """
        if shown := self.text:
            self.replaced.append(shown)
        for gate in self._gates:
            gate.drop()
        self._gates, self.seen, self.id, self.is_quiet = [], False, None, True
        self._received, self._received_length, self._shown, self._shown_length, self._begin = [], 0, [], 0, 0
        return self.replaced

    async def finish(self, reply: str, shown: str | None, id_: str | None = None) -> None:
        """Show the rest of a complete reply whose end the filter has withheld, and forward it if the reply was
        streamed.

        Does nothing without a filter. What `shown` has beyond the part of `reply` that it begins with is not shown.

        Args:
            reply: The complete text as received.
            shown: The part of the reply that is for the reader. None if nothing more may be shown, e.g. because the
                reply has only calls; chunks that still wait in the message stream are then dropped.
            id_: Id of the message; used only by `WholeReplyWatch`.
        """
        if self._new_visibility is None:
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
        """Receive newly shown text. Does nothing here; `StreamForwarder` overrides it."""


Forwarder = Callable[[Callable[[], Visibility]], StreamWatch]
"""Builds the watch that forwards one reply to a reader, given the function that builds the reply's filter."""


def _joined(pieces: list[str]) -> str:
    """Join the pieces in place, and return the text; a growing text is thus joined only when it is read."""
    if len(pieces) > 1:
        pieces[:] = ["".join(pieces)]
    return pieces[0] if pieces else ""


class WholeReplyWatch(StreamWatch):
    """Counts the text of each reply as shown once the reply is complete, for a reader who receives it with the history
    of the run.
    """

    async def receive_whole(self, reply: str, id_: str | None) -> None:
        """Show a reply that was not streamed, without the part that the filter withholds.

        Does nothing after a token.

        Args:
            reply: The whole text.
            id_: Id of the reply, used if the watch has none yet.
        """
        if not self.is_quiet and not self._received_length:
            self.id = self.id or id_
            if new := self._receive(reply):
                await self.forward(new)

    async def finish(self, reply: str, shown: str | None, id_: str | None = None) -> None:
        """Show the rest of a complete reply: all of it if nothing was streamed, what the filter held back, and text of
        `shown` that follows a call. Does nothing if the watch is quiet.

        Args:
            reply: The whole text of the reply.
            shown: The text that the reader is to have in the end; None if nothing more is to be shown.
            id_: Id of the reply.
        """
        if self.is_quiet:
            return
        if shown is not None and not self._received_length and not self._gates:
            # The common case of a reply that was not streamed: no filter is needed.
            self.id, self._received, self._received_length = self.id or id_, [reply], len(reply)
            self._show(max(0, reply.find(shown)), shown)
            await self.forward(shown)
            return
        await self.receive_whole(reply, id_)
        await super().finish(reply, shown)
        before = self.text
        if shown is not None and shown.startswith(before) and (rest := shown[len(before) :]):
            self._shown.append(rest)
            self.seen = True
            await self.forward(rest)


class StreamForwarder(StreamTap, WholeReplyWatch):
    """Makes the model stream, and forwards the text of the reply to `reader`; several times cheaper than the graph's
    own stream.

    A reply that is not streamed is forwarded at its end, with the same text. The model's stream waits while the reader
    processes a piece; the time between tokens is not limited meanwhile.
    """

    def __init__(self, reader: Reader, visibility: Callable[[], Visibility] | None = None) -> None:
        super().__init__(visibility)
        self._reader = reader

    async def forward(self, text: str) -> None:
        """Pass newly shown text to the reader; no time limit applies meanwhile."""
        if text:
            await self.limit.suspended(self._reader(text, self.id))


_REASONING_NODES = ("plan", "model", "finalize")


class ReasoningReader(AsyncCallbackHandler):
    """Passes the model's reasoning to `emit` as it is streamed, with the id of its message.

    Only calls of the agent's own nodes are read; those of delegates, hooks and tools are ignored.
    """

    run_inline = True
    """LangChain calls the handler directly, without creating a task for each token."""

    def __init__(self, emit: Callable[[str, str | None], Awaitable[None]]) -> None:
        self._emit = emit
        self._own: dict[UUID, str | None] = {}
        """Run of a model → id of its reply, as far as known."""
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
        """Record the run if it belongs to the agent's own `plan` or `finalize` node."""
        place = metadata or {}
        if place.get("langgraph_node") in _REASONING_NODES and "|" not in str(place.get("langgraph_checkpoint_ns", "")):
            self._own[run_id] = None

    async def on_llm_new_token(
        self, *_: Any, chunk: GenerationChunk | ChatGenerationChunk | None = None, run_id: UUID, **__: Any
    ) -> None:
        """Emit the reasoning in one chunk of a run whose start was seen; other chunks are ignored. The emission does
        not count in the run's time limit.
        """
        message = chunk.message if isinstance(chunk, ChatGenerationChunk) and run_id in self._own else None
        if not isinstance(message, AIMessageChunk):
            return
        self._own[run_id] = id_ = id_of_reply(self._own[run_id], message.id)
        if text := reasoning_text(message):
            self._streamed.add(run_id)
            limit, passing = _current_limit.get(), self._emit(text, id_)
            await (passing if limit is None else limit.suspended(passing))

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """Emit the reasoning of a recorded run's reply, unless any of it was streamed."""
        if run_id not in self._own or run_id in self._streamed:
            return
        for generation in response.generations[0]:
            message = generation.message if isinstance(generation, ChatGeneration) else None
            if isinstance(message, AIMessage) and (text := reasoning_text(message)):
                await self._emit(text, message.id)
