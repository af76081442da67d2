"""What of a reply has reached its reader: noted as it is streamed, and passed on to whoever reads along."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessageChunk
from langchain_core.messages.ai import UsageMetadata, add_usage
from langchain_core.outputs import ChatGenerationChunk, GenerationChunk

from graph_agent.models.token_timeout import TokenTimeout

T = TypeVar("T")

Reader = Callable[[str, str | None], Awaitable[None]]
"""Takes a piece of the answer's text, and the id of the message it belongs to."""


def shows(token: Any, chunk: GenerationChunk | ChatGenerationChunk | None) -> bool:
    """Whether a chunk of a stream holds something to read; many streams begin with one that names the role alone."""
    message = chunk.message if isinstance(chunk, ChatGenerationChunk) else None
    if not isinstance(message, AIMessageChunk):
        return bool(token)
    return bool(message.content or message.tool_call_chunks)


class Spoken(AsyncCallbackHandler):
    """Hears what of a reply has reached the reader, so that it is known when the reply is cut short."""

    run_inline = True
    """Without it each token would be a task of its own."""

    def __init__(self) -> None:
        self.seen = False
        """Whether anything has."""
        self.text = ""
        self.id: str | None = None
        """The message's id; None before its first token."""
        self.reported: UsageMetadata | None = None
        """What the provider has told of its tokens; None before it tells, which most do at the end."""
        self.limit = TokenTimeout(None)
        """The time limit of the request; it does not count the time that a reader takes."""

    async def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        """Do nothing; without this method LangChain would write out the whole request for `on_llm_start`."""

    async def on_llm_new_token(
        self,
        token: str | list[str | dict[str, Any]],
        *,
        chunk: GenerationChunk | ChatGenerationChunk | None = None,
        **_: Any,
    ) -> None:
        """Hear one token."""
        self.seen = self.seen or shows(token, chunk)
        if isinstance(chunk, ChatGenerationChunk):
            self.text += chunk.message.text
            self.id = chunk.message.id or self.id
            if isinstance(chunk.message, AIMessageChunk) and chunk.message.usage_metadata:
                self.reported = add_usage(self.reported, chunk.message.usage_metadata)


class ReadAloud(Spoken):
    """Passes a reply on as it comes, past the graph's own stream, which takes several times as long for each token.

    Args:
        reader: Who reads along; the reply waits for a reader that is slow.
    """

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self._reader = reader

    async def on_llm_new_token(
        self,
        token: str | list[str | dict[str, Any]],
        *,
        chunk: GenerationChunk | ChatGenerationChunk | None = None,
        **rest: Any,
    ) -> None:
        """Hear one token, and pass it on."""
        await super().on_llm_new_token(token, chunk=chunk, **rest)
        if isinstance(chunk, ChatGenerationChunk) and (text := chunk.message.text):
            with self.limit.paused():
                await self._reader(text, self.id)

    # LangChain streams a reply that is not asked for as a stream when a handler has these two.
    def tap_output_aiter(self, run_id: UUID, output: AsyncIterator[T]) -> AsyncIterator[T]:
        """Leave the output as it is."""
        return output

    def tap_output_iter(self, run_id: UUID, output: Iterator[T]) -> Iterator[T]:
        """Leave the output as it is."""
        return output
