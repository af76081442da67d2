"""Streams server-sent events, until completion, disconnect, or a send timeout.

A *frame* is the text of one event or comment. sse-starlette is not used: it ends every stream when the server stops,
before a final event can be sent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from graph_agent.base._internal.text import json_line
from graph_agent.interfaces.server.http_request import unless_disconnected

HEAD = "is_head"
"""Key of a request's state that is set for a HEAD request, which is handled as GET but receives no body."""


def frame(data: Any, event: str | None = None) -> str:
    """Return the text of one server-sent event: a line `event: NAME` if it has a name, a line `data: JSON`, and an
    empty line.

    Args:
        data: The data, which is written as JSON on one line.
        event: Name of the event; None for an event without a name.
    """
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json_line(json.dumps(data, ensure_ascii=False, separators=(',', ':')))}\n\n"


def with_json_lines(send: Send) -> Send:
    """Return a `send` that escapes the line separators of Unicode in event streams of an SDK, at which some clients
    split lines.

    Other responses are sent unchanged.
    """
    is_stream = False

    async def send_lines(message: Message) -> None:
        """Send a message; the body of an event stream is escaped."""
        nonlocal is_stream
        if message["type"] == "http.response.start":
            is_stream = Headers(scope=message).get("content-type", "").startswith(EventStream.media_type)
        elif is_stream and not message.get("body", b"").isascii():
            message = {**message, "body": json_line(message["body"].decode()).encode()}
        await send(message)

    return send_lines


def comment(text: str) -> str:
    """Return the frame of a comment, which clients skip. The text must be one line."""
    return f": {text}\n\n"


def progress_comment(progress: Mapping[str, Any]) -> str:
    """Return the frame of a comment with progress, `progress JSON`."""
    return comment(f"progress {json.dumps(progress, separators=(',', ':'))}")


class EventStream(Response):
    """A response that streams frames to a client, until they end or the client disconnects or stops reading.

    Args:
        frames: The frames. The generator is closed in any case.
        send_timeout_s: Seconds that a client may leave a frame unread. After that the stream ends without its last
            chunk, so that the client notices.
        close: Called when the frames have ended for any reason, before the last byte is sent. It may be called twice.
        after: Called after the last byte, or when the stream was cut off.
        headers: Further headers of the response.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[str, None],
        *,
        send_timeout_s: float,
        close: Callable[[], Awaitable[None]] | None = None,
        after: Callable[[], Awaitable[None]] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        # Proxies would collect a stream before they pass it on.
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no", **(headers or {})})
        self._frames = frames
        self._send_timeout_s = send_timeout_s
        self._close = close
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the frames until they end, the client disconnects, or it does not read for `send_timeout_s`; the latter
        two raise nothing.

        In any case the generator is closed, then `close` and `after` are called. Exceptions of the generator are
        raised.
        """
        try:
            # uvicorn closes the connection of an incomplete response.
            with suppress(TimeoutError):
                await unless_disconnected(receive, self._stream(send, is_head=HEAD in scope.get("state", ())))
        finally:
            try:
                await self._frames.aclose()
                await self._release()
            finally:
                if self._after is not None:
                    await self._after()

    async def _stream(self, send: Send, *, is_head: bool) -> None:
        """Send the headers and the frames, call `close`, and send the last chunk; a HEAD request receives no frames.

        Raises `TimeoutError` if the client leaves a frame or the last chunk unread for too long.
        """
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if not is_head:
            async for text in self._frames:
                async with asyncio.timeout(self._send_timeout_s):
                    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        await self._release()
        async with asyncio.timeout(self._send_timeout_s):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _release(self) -> None:
        """Call `close`, if there is one."""
        if self._close is not None:
            await self._close()
