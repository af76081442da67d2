"""Pieces of an answer, told together where they come faster than anybody reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

BETWEEN_PIECES_S = 0.016
"""Seconds between two pieces of an answer, as often as a screen is drawn: what is said between is told as one."""


class Pieces:
    """Tells text as it comes: the first piece at once, and what follows once in every so many seconds.

    Whoever tells anything else between calls `flush` first, which keeps the order.

    Args:
        tell: Takes one piece or several that were joined; never called twice at the same time.
        every_s: Seconds between two tellings.
    """

    def __init__(self, tell: Callable[[str], Awaitable[None]], every_s: float = BETWEEN_PIECES_S) -> None:
        self._tell = tell
        self._every_s = every_s
        self._held: list[str] = []
        self._due = 0.0
        self._later: asyncio.TimerHandle | None = None
        self._telling: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def add(self, text: str) -> None:
        """Tell a piece, now or with those that follow it within the time."""
        self._held.append(text)
        if self._later is not None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() >= self._due:
            await self.flush()
        else:
            self._later = loop.call_at(self._due, self._tell_later)

    async def flush(self) -> None:
        """Tell what is held back; when this returns, nothing is."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        async with self._one_at_a_time:
            text = "".join(self._held)
            self._held.clear()
            if text:
                await self._tell(text)
                self._due = asyncio.get_running_loop().time() + self._every_s

    def _tell_later(self) -> None:
        self._later = None
        self._telling = asyncio.ensure_future(self.flush())
