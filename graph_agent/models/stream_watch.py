"""What of a reply has reached its reader: noted as it is streamed, and passed on to whoever reads along."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Protocol, TypeVar
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata, add_usage
from langchain_core.outputs import ChatGenerationChunk, GenerationChunk
from langchain_core.runnables import RunnableConfig

from graph_agent._compat import with_stream_through
from graph_agent.models.message_gate import MessageGate
from graph_agent.models.token_timeout import TokenTimeout

T = TypeVar("T")

Reader = Callable[[str, str | None], Awaitable[None]]
"""Takes a piece of the answer's text, and the id of the message it belongs to."""


class Visibility(Protocol):
    """How much of an incomplete reply may be shown. One object serves one reply."""

    def part(self, text: str) -> tuple[int, int]:
        """The places of the reply between which its text may be shown: the second never gets smaller.

        Args:
            text: The reply so far.
        """
        ...


class Spoken(AsyncCallbackHandler):
    """Hears what of a reply has reached the reader, so that it is known when the reply is cut short.

    Args:
        visibility: Makes what holds a part of a reply back; None where each token is shown as it comes. With one, the
            reply must be settled when it is complete.
    """

    run_inline = True
    """Without it each token would be a task of its own."""

    def __init__(self, visibility: Callable[[], Visibility] | None = None) -> None:
        self.seen = False
        """Whether anything has."""
        self.text = ""
        self.id: str | None = None
        """The message's id; None before its first token."""
        self.reported: UsageMetadata | None = None
        """What the provider has told of its tokens; None before it tells, which most do at the end."""
        self.limit = TokenTimeout(None)
        """The time limit of the request; it does not count the time that a reader takes."""
        self.received = ""
        """The reply so far, with what is not shown."""
        self._new_visibility = visibility
        self._visibility = visibility() if visibility is not None else None
        self._begin = 0
        self._gates: list[MessageGate] = []
        self._by_chunk = False

    def gated(self, config: RunnableConfig) -> RunnableConfig:
        """The config of a model call whose reply this handler watches, laid over the config of the run."""
        if self._new_visibility is None:
            return config
        return with_stream_through(config, self._gate)

    def _gate(self, send: Callable[[Any], None], seen: set[int | str]) -> MessageGate:
        gate = MessageGate(send, seen)
        self._gates.append(gate)
        return gate

    async def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], **_: Any
    ) -> None:
        """Begin with a new reply: what an attempt that failed left, and nobody has read, is forgotten."""
        if self.seen or self._new_visibility is None:
            return
        self._visibility = self._new_visibility()
        self.received = ""
        for gate in self._gates:
            gate.drop()

    async def on_llm_new_token(
        self,
        token: str | list[str | dict[str, Any]],
        *,
        chunk: GenerationChunk | ChatGenerationChunk | None = None,
        **_: Any,
    ) -> None:
        """Hear one token."""
        if not isinstance(chunk, ChatGenerationChunk):
            self.seen = self.seen or self._visibility is None
            return
        self._by_chunk = True
        self.id = chunk.message.id or self.id
        if isinstance(chunk.message, AIMessageChunk) and chunk.message.usage_metadata:
            self.reported = add_usage(self.reported, chunk.message.usage_metadata)
        await self._receive(chunk.message.text)

    async def on_stream_event(self, event: Any, **_: Any) -> None:
        """Hear one event of a reply that is streamed for `stream_events(version="v3")`."""
        # Most models tell of each chunk as well.
        if not self._by_chunk:
            if event.get("event") == "message-start":
                self.id = event.get("id") or self.id
            await self._receive(
                str(event["delta"].get("text", "")) if event.get("event") == "content-block-delta" else ""
            )

    async def _receive(self, text: str) -> None:
        self.received += text
        if self._visibility is None:
            self.seen = True
            self.text = self.received
            await self._pass_on(text)
        elif text:
            await self._show(*self._visibility.part(self.received))

    async def _show(self, begin: int, end: int) -> None:
        new = self.received[begin + len(self.text) : end]
        if not new:
            return
        self._begin, self.seen = begin, True
        self.text += new
        for gate in self._gates:
            gate.show(begin, end)
        await self._pass_on(new)

    async def settle(self, reply: str, shown: str | None) -> None:
        """Show the rest of a complete reply, or drop it.

        Args:
            reply: The whole text of the reply.
            shown: What of it is for the reader; None where nothing is, not even its calls.
        """
        if self._visibility is None:
            return
        if shown is None:
            for gate in self._gates:
                gate.drop()
            return
        # A model that does not stream has not told of its text until now.
        streamed, self.received = bool(self.received), reply
        begin = self._begin if self.text else max(0, reply.find(shown))
        end = begin + max(_common(reply[begin:], shown), len(self.text))
        if streamed:
            await self._show(begin, end)
        for gate in self._gates:
            gate.show(begin, end)
            gate.close()

    async def _pass_on(self, text: str) -> None:
        """Pass on text that is shown now."""


def _common(text: str, other: str) -> int:
    """How many characters two texts begin with in common."""
    if text.startswith(other):
        return len(other)
    return next((at for at, (one, two) in enumerate(zip(text, other, strict=False)) if one != two), len(text))


class ReadAloud(Spoken):
    """Passes a reply on as it comes, past the graph's own stream, which takes several times as long for each token.

    Args:
        reader: Who reads along; the reply waits for a reader that is slow.
        visibility: As for `Spoken`.
    """

    def __init__(self, reader: Reader, visibility: Callable[[], Visibility] | None = None) -> None:
        super().__init__(visibility)
        self._reader = reader

    async def _pass_on(self, text: str) -> None:
        if text:
            with self.limit.paused():
                await self._reader(text, self.id)

    # LangChain streams a reply that is not asked for as a stream when a handler has these two.
    def tap_output_aiter(self, run_id: UUID, output: AsyncIterator[T]) -> AsyncIterator[T]:
        """Leave the output as it is."""
        return output

    def tap_output_iter(self, run_id: UUID, output: Iterator[T]) -> Iterator[T]:
        """Leave the output as it is."""
        return output
