"""Long tool results made short in every request, while the history keeps them whole."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import sys
from collections.abc import Awaitable, Callable

from langchain_core.messages import ToolMessage

from graph_agent._internal.daemon_threads import call_in_thread
from graph_agent.hooks.protocol import LoopHook, OnError
from graph_agent.tools.truncation import truncate

Compress = Callable[[str], str | Awaitable[str]]
"""A result's text → what is left of it."""

_KEPT = 1_000
"""Compressed texts that are remembered at most; the oldest is made anew when it is needed again."""


class HistoryCompression(LoopHook):
    """Sends each long tool result compressed, in all requests: plans and answers, of this input and of later ones.

    The session's history keeps every result whole. A result is compressed once in a process, and again in another. The
    model never reads a long result whole unless it is among the newest, which `keep_newest` leaves as they are; the
    limits `max_output_chars` and `offload_over_chars` of the configuration cut results in the history as well.

    Args:
        compress: Gives what is left of a result, a function (run in a thread) or a coroutine function; None keeps its
            beginning and its end, with a line between that gives the number of characters missing.
        over_chars: Characters above which a result is compressed, and to which None's way cuts it.
        keep_newest: How many of the newest results stay whole.
        on_error: As for every hook.
    """

    def __init__(
        self,
        compress: Compress | None = None,
        *,
        over_chars: int = 4_000,
        keep_newest: int = 0,
        on_error: OnError = "fail",
    ) -> None:
        if over_chars < 1 or keep_newest < 0:
            raise ValueError(f"over_chars={over_chars}, keep_newest={keep_newest}: give 1 or more, and 0 or more.")
        self.on_error = on_error
        self._compress = compress or self._cut
        self._over_chars = over_chars
        self._keep_newest = keep_newest
        self._made: dict[bytes, str] = {}

    async def rewrite_results(self, results: list[ToolMessage]) -> dict[str, str]:
        """Compress the long results, all at once."""
        old = results[: len(results) - self._keep_newest]
        long = [result for result in old if len(result.text) > self._over_chars and result.id]
        short = await asyncio.gather(*(self._compressed(result.text) for result in long))
        return {str(result.id): text for result, text in zip(long, short, strict=True)}

    async def _compressed(self, text: str) -> str:
        key = hashlib.blake2b(text.encode(errors="surrogatepass")).digest()
        if (made := self._made.get(key)) is not None:
            return made
        short: object
        if inspect.iscoroutinefunction(self._compress):
            short = await self._compress(text)
        else:
            short = await call_in_thread(self._compress, text)
            short = await short if isinstance(short, Awaitable) else short
        if not isinstance(short, str):
            raise TypeError(f"compress returned {short!r}; return text")
        if len(self._made) >= _KEPT:
            self._made.pop(next(iter(self._made)), None)
        self._made[key] = short
        return short

    def _cut(self, text: str) -> str:
        return truncate(text, max_chars=self._over_chars, max_lines=sys.maxsize).text
