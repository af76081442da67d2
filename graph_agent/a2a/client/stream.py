"""A remote agent's event stream, read by a separate task so that a cancelled waiter loses no event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from a2a.types import StreamResponse

_MAX_QUEUED = 64
"""Maximum queued events; a full queue stops reading, which slows the agent down."""


class EventStream:
    """The events of one request, in order. The code that opens it closes it.

    Args:
        stream: The SDK's generator.
    """

    def __init__(self, stream: AsyncIterator[StreamResponse]) -> None:
        self._events: asyncio.Queue[StreamResponse | BaseException | None] = asyncio.Queue(_MAX_QUEUED)
        # A single task drives the generator from start to end, as it would lose its context variables otherwise.
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
        """Stop reading, and wait until the stream is closed."""
        self._reader.cancel()
        await asyncio.wait([self._reader])

    async def _read(self, stream: AsyncIterator[StreamResponse]) -> None:
        last: BaseException | None = None
        try:
            async for event in stream:
                await self._events.put(event)
        except Exception as error:  # noqa: BLE001 - raised by `__anext__` in the waiting task
            last = error
        finally:
            generator: Any = stream
            await generator.aclose()
        await self._events.put(last)
