"""Joins text chunks that arrive faster than a reader can follow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

BETWEEN_PIECES_S = 0.016
"""Minimum seconds between two sends, about one screen refresh; chunks in between are joined."""


class TextCoalescer:
    """Sends the first chunk at once, and joins later chunks into one send per interval.

    To keep the order, call `flush` before anything else is sent to the same receiver.

    Args:
        send: Receives one chunk or several joined chunks; calls never overlap.
        every_s: Returns the minimum seconds from one send to the next.
    """

    def __init__(
        self, send: Callable[[str], Awaitable[None]], every_s: Callable[[], float] = lambda: BETWEEN_PIECES_S
    ) -> None:
        self._send = send
        self._every_s = every_s
        self._buffer: list[str] = []
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._send_lock = asyncio.Lock()

    async def add(self, text: str) -> None:
        """Send a chunk now, or joined with the chunks that follow within the interval."""
        self._buffer.append(text)
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() >= self._due:
            await self.flush()
        else:
            self._timer = loop.call_at(self._due, self._flush_later)

    async def flush(self) -> None:
        """Send the buffered text; the buffer is empty on return."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        async with self._send_lock:
            text = "".join(self._buffer)
            self._buffer.clear()
            if text:
                await self._send(text)
                self._due = asyncio.get_running_loop().time() + self._every_s()

    async def drop(self) -> None:
        """Drop the buffered text, after a send that has begun."""
        self._buffer.clear()
        await self.flush()

    def _flush_later(self) -> None:
        self._timer = None
        self._flushing = asyncio.ensure_future(self.flush())
