"""Size limit for HTTP response bodies of MCP servers; a message that is too long is replaced by an error reply."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator

import httpx
from mcp.types import RequestId

from graph_agent.mcp.messages import error_reply, too_long

logger = logging.getLogger("graph_agent.mcp")

_HEAD = 65_536
"""Bytes of a too long message that are searched for its id."""
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_BLANK_BYTES = 4
_ID_LINE = re.compile(rb"^id:([^\r\n]*)", re.MULTILINE)


class BoundedBody:
    """Passes a body on in whole messages: a JSON body at once, server-sent events one by one.

    Args:
        response: The response, with an unread body.
        request_id: The request it answers; None for a stream opened for the server's own messages.
        max_bytes: Maximum bytes of one message.
    """

    def __init__(self, response: httpx.Response, request_id: RequestId | None, max_bytes: int) -> None:
        self.has_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        self.last_event_id = ""
        """Id of the newest event; empty before the first event with an id."""
        self._response = response
        self._request_id = request_id
        self._max_bytes = max_bytes

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body. Raises httpx's read errors."""
        if self.has_events:
            async for event in self._events():
                yield event
        else:
            yield await self._whole()

    async def _whole(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for chunk in self._response.aiter_bytes():
            parts.append(chunk)
            size += len(chunk)
            if size > self._max_bytes:
                return self._refusal(b"".join(parts))
        return b"".join(parts)

    async def _events(self) -> AsyncIterator[bytes]:
        """Yield whole events, each with its final blank line."""
        buffer, searched, refused = bytearray(), 0, False
        async for chunk in self._response.aiter_bytes():
            buffer += chunk
            while blank := _BLANK_LINE.search(buffer, searched):
                event = bytes(buffer[: blank.end()])
                del buffer[: blank.end()]
                searched = 0
                if not refused:
                    yield self._checked(event)
                refused = False
            if len(buffer) > self._max_bytes:
                if not refused:
                    yield self._refused_event(bytes(buffer[:_HEAD]))
                refused = True
                del buffer[:-_BLANK_BYTES]
            searched = max(0, len(buffer) - _BLANK_BYTES)
        if buffer and not refused:
            yield bytes(buffer)

    def _checked(self, event: bytes) -> bytes:
        if len(event) > self._max_bytes:
            return self._refused_event(event[:_HEAD])
        if ids := _ID_LINE.findall(event):
            self.last_event_id = ids[-1].strip().decode(errors="replace")
        return event

    def _refused_event(self, event: bytes) -> bytes:
        data = b"".join(line[5:] for line in event.split(b"\n") if line.startswith(b"data:"))
        reply = self._refusal(data)
        return b"event: message\ndata: " + reply + b"\n\n" if reply else b""

    def _refusal(self, head: bytes) -> bytes:
        refused = too_long(head[:_HEAD], self._max_bytes)
        request_id = self._request_id if self._request_id is not None else refused.request_id
        if request_id is None:
            logger.warning("A message from an MCP server was dropped: %s", refused.reason)
            return b""
        return error_reply(request_id, refused.reason).model_dump_json(by_alias=True, exclude_none=True).encode()
