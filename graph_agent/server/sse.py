"""Server-sent events: one response that ends when its reader goes away, reads too slowly, or has read it all.

sse-starlette is not used: it ends every stream when the server is asked to stop, before a client can be told.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

# Many clients read with `str.splitlines`, which takes these for ends of lines; JSON may hold them as escapes.
_LINE_ENDS = str.maketrans({end: f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"})


def frame(data: Any, event: str | None = None) -> str:
    """One event: its name, if it has one, and its data as JSON on one line."""
    head = f"event: {event}\n" if event else ""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"{head}data: {text if text.isascii() else text.translate(_LINE_ENDS)}\n\n"


def comment(text: str) -> str:
    """A comment, which clients skip: one line of text."""
    return f": {text}\n\n"


def progress_comment(progress: Mapping[str, Any]) -> str:
    """Progress as a comment, in JSON."""
    return comment(f"progress {json.dumps(progress, separators=(',', ':'))}")


class EventStream(Response):
    """Streams frames to a client.

    Args:
        frames: The frames, in order.
        send_timeout_s: Seconds a client may leave a frame unread.
        close: Called once, when the stream is over for whatever reason.
        headers: Further headers.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[str, None],
        *,
        send_timeout_s: float,
        close: Callable[[], Awaitable[None]],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no", **(headers or {})})
        self._frames = frames
        self._send_timeout_s = send_timeout_s
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI calls it."""
        sending = asyncio.create_task(self._stream(send))
        leaving = asyncio.create_task(until_gone(receive))
        try:
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            await self._frames.aclose()
            await self._close()
        if not sending.cancelled() and (error := sending.exception()) is not None:
            if isinstance(error, TimeoutError):
                return  # uvicorn closes the connection of a response that was left unfinished
            raise error

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for text in self._frames:
            async with asyncio.timeout(self._send_timeout_s):
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        async with asyncio.timeout(self._send_timeout_s):
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def until_gone(receive: Receive) -> None:
    """Wait until the client of a request, whose body has been read, goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass
