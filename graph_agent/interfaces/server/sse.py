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
"""Key of a request's state that is set if the request has the method HEAD, which is served as GET."""


def frame(data: Any, event: str | None = None) -> str:
    """Return the text of one event, e.g. `event: end` and `data: {"after":3}` on two lines, followed by an empty line.

    `event` is the name; None for an event without one. The data is JSON on one line.
    """
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json_line(json.dumps(data, ensure_ascii=False, separators=(',', ':')))}\n\n"


def with_json_lines(send: Send) -> Send:
    """Return a `send` that escapes raw line ends of Unicode in the events of an SDK's event stream, as `frame` does."""
    is_stream = False

    async def send_lines(message: Message) -> None:
        """Send a message."""
        nonlocal is_stream
        if message["type"] == "http.response.start":
            is_stream = Headers(scope=message).get("content-type", "").startswith(EventStream.media_type)
        elif is_stream and not message.get("body", b"").isascii():
            message = {**message, "body": json_line(message["body"].decode()).encode()}
        await send(message)

    return send_lines


def comment(text: str) -> str:
    """Return a comment of one line as a frame, which clients skip."""
    return f": {text}\n\n"


def progress_comment(progress: Mapping[str, Any]) -> str:
    """Return progress as a comment, `progress` and JSON."""
    return comment(f"progress {json.dumps(progress, separators=(',', ':'))}")


class EventStream(Response):
    """A response that streams frames to a client, until they end or the client disconnects.

    Args:
        frames: The frames; closed at the end.
        send_timeout_s: Seconds that a client may leave a frame unread; then the stream ends without a last chunk.
        close: Called when the stream has ended for any reason, before its last byte; it may be called twice.
        after: Called after the last byte, or when the stream has ended before it.
        headers: Further headers.
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
        """Send the frames until they end, the client disconnects or stops reading; then release the resources."""
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
        """Send the headers, the frames unless the request is a HEAD, and the last chunk.

        Raises `TimeoutError` if one is not read.
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
