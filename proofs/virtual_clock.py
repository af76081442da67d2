"""An event loop with a virtual clock, and a scripted model whose replies take time on it.

A run takes no real time, and the time of the executor itself is not part of it; `python -m benchmarks.waves` measures
that.
"""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr

from graph_agent import ScriptedChatModel

T = TypeVar("T")
CHARS_PER_TOKEN = 4
_CALL = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>\n'
"""How Qwen, Hermes and others write a native call."""


class TimedModel(ScriptedChatModel):
    """A scripted model that streams its replies on the loop's clock.

    Args:
        replies: The replies in order.
        first_token_s: Seconds from a request to the first token of its reply.
        stream_s: Returns the seconds from the first token of a reply to its end.
        streamed: Whether it also streams for callers that wait for the whole reply.
    """

    _first_token_s: float = PrivateAttr()
    _stream_s: Callable[[AIMessage], float] = PrivateAttr()

    def __init__(
        self,
        replies: Sequence[Any],
        stream_s: Callable[[AIMessage], float],
        *,
        first_token_s: float = 0.0,
        streamed: bool = True,
    ) -> None:
        super().__init__(replies, streaming=streamed)
        self._first_token_s, self._stream_s = first_token_s, stream_s

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        found = await super()._agenerate(messages, stop, run_manager, **kwargs)
        message = found.generations[0].message
        assert isinstance(message, AIMessage)
        await asyncio.sleep(self._first_token_s + self._stream_s(message))
        return found

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        chunks = [chunk async for chunk in super()._astream(messages, stop, None, **kwargs)]
        sizes = [_characters(chunk.message) for chunk in chunks]
        message = sum((chunk.message for chunk in chunks[1:]), chunks[0].message)
        assert isinstance(message, AIMessage)
        character_s = self._stream_s(message) / (sum(sizes) or 1)
        await asyncio.sleep(self._first_token_s)
        for chunk, size in zip(chunks, sizes, strict=True):
            await asyncio.sleep(size * character_s)
            if run_manager:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk


def tokens_of(message: AIMessage) -> float:
    """Return the tokens of a reply, at four characters a token; a call counts as the text that open models write."""
    calls = sum(len(_CALL.format(call["name"], json.dumps(call["args"]))) for call in message.tool_calls)
    return (len(message.text) + calls) / CHARS_PER_TOKEN


def _characters(message: BaseMessage) -> int:
    pieces = message.tool_call_chunks if isinstance(message, AIMessageChunk) else []
    return len(message.text) + sum(len(piece["name"] or "") + len(piece["args"] or "") for piece in pieces)


class _VirtualSelector(selectors.SelectSelector):
    """A selector that moves its clock to the next timer in place of waiting for it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0 if timeout else timeout)
        if not ready and timeout:
            self.now += timeout
        return ready


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on an event loop with a virtual clock. It must not wait for threads or connections."""
    selector = _VirtualSelector()

    def loop() -> asyncio.AbstractEventLoop:
        made = asyncio.SelectorEventLoop(selector)
        made.time = lambda: selector.now  # type: ignore[method-assign]  # the clock of the loop's timers
        return made

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(work)
