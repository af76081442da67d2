"""Streams of a session's past and future events."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from graph_agent.models.public_text import public_value
from graph_agent.server.hosting.feeds import Feeds
from graph_agent.server.sse import comment, frame


async def follow(
    feeds: Feeds, thread: str, session_id: str, *, types: list[str], after: int, keepalive_s: float
) -> AsyncGenerator[str, None]:
    """Stream a thread's events as server-sent events, until the server stops or the thread is deleted.

    The last event has the type `end`, with the reason (`server_stopping` or `deleted`) and the position from which to
    continue (`after`).

    Args:
        feeds: The server's feeds.
        thread: The thread.
        session_id: The session's id in the events.
        types: Types of events to stream; empty for all.
        after: Only events with a higher `seq` are streamed.
        keepalive_s: Seconds of silence after which a comment is sent.
    """
    silent_since = time.monotonic()
    async with feeds.following(thread) as (feed, follower):
        while True:
            over = feed.ended
            events = await feed.take(follower, after)
            for event in events:
                after += 1
                if not types or event["type"] in types:
                    silent_since = time.monotonic()
                    yield frame({**public_value(event), "seq": after, "session_id": session_id}, event["type"])
            if over is not None:
                break
            if time.monotonic() - silent_since >= keepalive_s:
                silent_since = time.monotonic()
                yield comment("nothing new")
            if not events:
                await feed.wait(max(0.01, keepalive_s - (time.monotonic() - silent_since)))
    yield frame({"type": "end", "reason": over, "after": after}, "end")
