"""Repeats a function at intervals, even if it fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn

from graph_agent.base._internal.failure_log import log_failure

POLL_S = 0.25
"""Seconds between two looks at the Store for an abort from another process, and between two tries to get a lock."""


async def poll_forever(
    look: Callable[[], Awaitable[Any]], every_s: float, logger: logging.Logger, what: str
) -> NoReturn:
    """Call `look` until cancelled, with a pause of `every_s` seconds after each call.

    `look` may raise anything, e.g. during an outage of the database; only the first of consecutive failures is logged.

    Args:
        look: The function.
        every_s: Seconds between the end of one call and the next.
        logger: Receives the failures.
        what: What the function does, as the subject of a sentence.
    """
    failing = False
    while True:
        try:
            await look()
            failing = False
        except Exception as error:  # noqa: BLE001 - see `look`; a cancellation propagates
            if not failing:
                log_failure(logger, what, error)
            failing = True
        await asyncio.sleep(every_s)


@asynccontextmanager
async def polling(
    look: Callable[[], Awaitable[Any]], every_s: float, logger: logging.Logger, what: str
) -> AsyncIterator[None]:
    """Call `look` again and again in a task during the block; at its end, cancel the task and wait for its end.

    Args:
        look: The function. Of consecutive failures, only the first is logged.
        every_s: Seconds between the end of one call and the next.
        logger: Receives the failures.
        what: What the function does, as the subject of a sentence.
    """
    task = asyncio.create_task(poll_forever(look, every_s, logger, what))
    try:
        yield
    finally:
        task.cancel()
        # Not `await task`, which would raise its cancellation here.
        await asyncio.wait([task])
