"""Looking at something again and again, whatever a look may come to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from graph_agent._internal.failure_log import log_failure


async def look_again(look: Callable[[], Awaitable[Any]], every_s: float, logger: logging.Logger, what: str) -> NoReturn:
    """Look until this is cancelled.

    Args:
        look: One look. A database may fail it in any way, and the next look may find it well again, so the first of
            several failures in a row is logged, and none of them ends this.
        every_s: Seconds between two looks.
        logger: Whose log.
        what: What is done, as the subject of a sentence.
    """
    failing = False
    while True:
        try:
            await look()
            failing = False
        except Exception as error:  # noqa: BLE001 - see `look`; a cancellation passes
            if not failing:
                log_failure(logger, what, error)
            failing = True
        await asyncio.sleep(every_s)
