"""A session's events as a stream, those to come included."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from graph_agent.server.news import News
from graph_agent.server.sse import comment, frame

LOOK_S = 2.0
"""Seconds between two looks at what another process may have stored; what this one stores is told at once."""
_REST_S = 0.1
"""Seconds between two looks at most times: a run stores several checkpoints at once."""


async def follow(
    news: News,
    thread: str,
    newest: Callable[[], Awaitable[str | None]],
    events: Callable[[int], Awaitable[list[dict[str, Any]]]],
    *,
    types: list[str],
    after: int,
    keepalive_s: float,
) -> AsyncGenerator[str, None]:
    """Tell a thread's events, each as a server-sent event of its type, until the server stops or the thread is gone.

    The last one is of type `end`, and says why (`reason`: `server_stopping` or `deleted`) and where to go on (`after`).

    Args:
        news: What wakes it.
        thread: The thread.
        newest: Gives the id of its newest checkpoint; None when the thread is gone.
        events: Gives its events with a higher `seq` than a number.
        types: Types of events to tell; empty for all.
        after: The `seq` that the first event is behind.
        keepalive_s: Seconds of silence after which a comment is sent.
    """
    seen: str | None = None
    silent_since = time.monotonic()
    with news.of(thread) as bell:
        while not news.over:
            bell.clear()
            now = await newest()
            if now is None:
                yield _end("deleted", after)
                return
            if now != seen:
                seen = now
                for event in await events(after):
                    after = event["seq"]
                    if not types or event["type"] in types:
                        silent_since = time.monotonic()
                        yield frame(event, event["type"])
            if time.monotonic() - silent_since >= keepalive_s:
                silent_since = time.monotonic()
                yield comment("nothing new")
            await asyncio.sleep(_REST_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(LOOK_S, keepalive_s)):
                    await bell.wait()
    yield _end("server_stopping", after)


def _end(reason: str, after: int) -> str:
    return frame({"type": "end", "reason": reason, "after": after}, "end")
