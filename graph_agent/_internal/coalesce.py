"""TextCoalescer of an answer, told together where they come faster than anybody reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

BETWEEN_PIECES_S = 0.016
"""Seconds between two pieces of an answer, as often as a screen is drawn: what is said between is told as one."""


class TextCoalescer:
    """Tells text as it comes: the first piece at once, and what follows once in every so many seconds.

    Whoever tells anything else between calls `flush` first, which keeps the order.

    Args:
        send: Takes one piece or several that were joined; never called twice at the same time.
        every_s: Seconds between two tellings.
    """

    def __init__(self, send: Callable[[str], Awaitable[None]], every_s: float = BETWEEN_PIECES_S) -> None:
        self._send = send
        self._every_s = every_s
        self._buffer: list[str] = []
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._send_lock = asyncio.Lock()

    async def add(self, text: str) -> None:
        """Tell a piece, now or with those that follow it within the time."""
        self._buffer.append(text)
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() >= self._due:
            await self.flush()
        else:
            self._timer = loop.call_at(self._due, self._flush_later)

    async def flush(self) -> None:
        """Tell what is held back; when this returns, nothing is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        async with self._send_lock:
            text = "".join(self._buffer)
            self._buffer.clear()
            if text:
                await self._send(text)
                self._due = asyncio.get_running_loop().time() + self._every_s

    def _flush_later(self) -> None:
        self._timer = None
        self._flushing = asyncio.ensure_future(self.flush())


Pieces = TextCoalescer
