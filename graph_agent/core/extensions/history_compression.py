"""Compresses long tool results in requests; the history keeps them whole."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import sys
from collections.abc import Awaitable, Callable

from langchain_core.messages import ToolMessage

from graph_agent.base._internal.sync_bridge import call_in_thread
from graph_agent.core.extensions.hook_protocol import LoopHook, OnError
from graph_agent.core.extensions.truncation import truncate

Compress = Callable[[str], str | Awaitable[str]]
"""A result's text → its compressed text."""

_MAX_CACHED = 1_000
"""Maximum number of compressed texts in the cache."""


class HistoryCompression(LoopHook):
    """Compresses each long tool result in all requests: plans and answers, of this input and of later ones.

    The session's history keeps every result whole. A result is compressed once per process. The model never reads a
    long result whole, except for the newest `keep_newest` results; the configuration's limits `max_output_chars` and
    `offload_over_chars` cut results in the history as well.

    Args:
        compress: Returns the compressed text of a result; a function (run in a thread) or a coroutine function. None
            keeps the beginning and the end, with a line between them that states the number of missing characters.
        over_chars: Characters above which a result is compressed, and the length of the default's compressed text.
        keep_newest: Number of newest results that are not compressed.
        on_error: `fail` ends the input as `FAILED` if `compress` raises; `skip` warns and sends the results
            uncompressed.

    Raises:
        ValueError: `over_chars` is below 1, or `keep_newest` below 0.
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
        self._cache: dict[bytes, str] = {}

    async def rewrite_results(self, results: list[ToolMessage]) -> dict[str, str]:
        """Return message id → compressed text of each long result, except for the newest `keep_newest`.

        Results without an id are left out. The others are compressed concurrently, or taken from the cache, which is by
        content. Raises what `compress` raises, and `TypeError` if it returns no text.
        """
        old = results[: max(0, len(results) - self._keep_newest)]
        long = [result for result in old if len(result.text) > self._over_chars and result.id]
        short = await asyncio.gather(*(self._compressed(result.text) for result in long))
        return {str(result.id): text for result, text in zip(long, short, strict=True)}

    async def _compressed(self, text: str) -> str:
        """Return the compressed text of a result, from the cache if possible. A full cache drops its oldest entry.

        A `compress` that is no coroutine function runs in a thread; an awaitable that it returns is awaited.

        Raises:
            TypeError: `compress` returned something other than text.
            Exception: `compress` raised it.
        """
        # A digest, because the texts themselves may fill the memory.
        key = hashlib.blake2b(text.encode(errors="surrogatepass")).digest()
        if (cached := self._cache.get(key)) is not None:
            return cached
        short: object
        if inspect.iscoroutinefunction(self._compress):
            short = await self._compress(text)
        else:
            short = await call_in_thread(self._compress, text)
            # A lambda or a partial may return a coroutine.
            short = await short if isinstance(short, Awaitable) else short
        if not isinstance(short, str):
            raise TypeError(f"compress returned {short!r}; return text")
        if len(self._cache) >= _MAX_CACHED:
            self._cache.pop(next(iter(self._cache)), None)
        self._cache[key] = short
        return short

    def _cut(self, text: str) -> str:
        """Compress by keeping the beginning and the end, with a line between them about the number of missing
        characters."""
        return truncate(text, max_chars=self._over_chars, max_lines=sys.maxsize).text
