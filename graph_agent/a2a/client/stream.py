"""A remote agent's events, read by a task of its own: who waits for one may be cancelled without losing it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from a2a.types import StreamResponse

_MOST_WAITING = 64
"""Events that may wait to be taken; then the agent waits, too."""


class EventStream:
    """The events of one request, in order. It is closed by who has opened it.

    Args:
        stream: The SDK's generator.
    """

    def __init__(self, stream: AsyncIterator[StreamResponse]) -> None:
        self._events: asyncio.Queue[StreamResponse | BaseException | None] = asyncio.Queue(_MOST_WAITING)
        # One task from its beginning to its end: a generator that several tasks drive loses its context variables.
        self._reader = asyncio.create_task(self._read(stream))

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> StreamResponse:
        event = await self._events.get()
        if event is None:
            raise StopAsyncIteration
        if isinstance(event, BaseException):
            raise event
        return event

    async def aclose(self) -> None:
        """Leave the stream, and wait until it is closed."""
        self._reader.cancel()
        await asyncio.wait([self._reader])

    async def _read(self, stream: AsyncIterator[StreamResponse]) -> None:
        last: BaseException | None = None
        try:
            async for event in stream:
                await self._events.put(event)
        except Exception as error:  # noqa: BLE001 - it belongs to who waits for the events
            last = error
        finally:
            closing: Any = stream
            await closing.aclose()
        await self._events.put(last)
