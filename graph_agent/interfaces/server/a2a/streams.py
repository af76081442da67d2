"""Bounds the updates of a task that wait for a subscriber that reads slowly, or not at all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing

from a2a.server.events import Event
from a2a.utils.errors import InternalError

MOST_WAITING_BYTES = 4_000_000
"""Maximum bytes of updates that may wait for a subscriber.

The SDK's own queue holds 1,024 updates, each with a copy of the task.
"""


async def bounded_stream(updates: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    """Yield the updates of a task, which are read from the SDK without waiting for the subscriber.

    So a subscriber that reads slowly delays neither the task nor other subscribers. If several updates with more than 4
    MB (`MOST_WAITING_BYTES`) wait, they are dropped and `InternalError` is raised. Exceptions of `updates` are raised
    after the updates before them. Closing the stream closes `updates`.
    """
    waiting: deque[tuple[Event, int]] = deque()
    total, changed = 0, asyncio.Event()

    async def take() -> None:
        """Read the updates into the queue until their end, and wake the reader after each.

        When too many bytes wait, the queue is emptied and `InternalError` raised; a single update may have any size.
        """
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
