"""Bounds the updates of a task that wait for a subscriber that reads slowly, or not at all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing

from a2a.server.events import Event
from a2a.utils.errors import InternalError

MOST_WAITING_BYTES = 4_000_000
"""Bytes of updates that may wait for a subscriber; the SDK's own queue holds 1,024, each with a copy of the task."""


async def bounded_stream(updates: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    """Yield updates, which are taken from the SDK as they come, so that the task and other subscribers do not wait.

    When more than 4 MB (`MOST_WAITING_BYTES`) wait for the reader, they are dropped and `InternalError` is raised in
    place of the rest. Closing the stream closes `updates`.
    """
    waiting: deque[tuple[Event, int]] = deque()
    total, changed = 0, asyncio.Event()

    async def take() -> None:
        """Queue the updates; raise `InternalError` when too many bytes wait."""
        nonlocal total
        try:
            async with aclosing(updates):
                async for update in updates:
                    size = update.ByteSize()
                    waiting.append((update, size))
                    total += size
                    changed.set()
                    # A single update of any size is sent.
                    if total > MOST_WAITING_BYTES and len(waiting) > 1:
                        waiting.clear()
                        raise InternalError(
                            "Updates were not read in time, so this stream ends. Subscribe again, or get the task."
                        )
        finally:
            changed.set()

    taking = asyncio.create_task(take())
    try:
        while True:
            while waiting:
                update, size = waiting.popleft()
                total -= size
                yield update
            if taking.done():
                await taking
                return
            changed.clear()
            await changed.wait()
    finally:
        taking.cancel()
        await asyncio.wait([taking])
