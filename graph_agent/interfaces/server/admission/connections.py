"""Limits the size and arrival time of everything on a connection except request bodies."""

from __future__ import annotations

import asyncio
import socket
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

_UNREAD_MS = 60_000
"""Milliseconds that a client may leave sent data unacknowledged, even after the server has closed the connection."""
_FIELD_OVERHEAD = 32
"""Bytes that a header counts in addition to its name and value, as in HTTP/2: many short headers take memory too."""
_CHUNK_FRAMING = 20
"""Bytes of a chunk for its size and line ends, which do not count; the rest of its first line (extensions) counts."""
_LINGER_S = 5.0
"""Seconds to read and drop input after a refusal: closing at once would reset the connection, and the client would lose
the response."""


class _HeadTooLargeError(Exception):
    """The request line and the headers exceed the limit; raised in a callback to stop the parser."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits for request lines, headers, trailers and chunk extensions.

    uvicorn itself limits only the idle time between requests, and its httptools parser collects headers without limit.
    A request over a limit gets status 431, or 408 if its headers are late, and the connection is closed. No status is
    sent if the response to that request has started, or an earlier response is still being sent. Trailers are dropped.
    uvicorn constructs one object for each connection; the *head* of a request is its request line and headers.
    """

    request_within_s = 30.0
    """Seconds for the headers of a request, from the connection or from its first byte; one value for the process."""
    max_header_bytes = 65_536
    """Bytes of a request except its body; one value for the process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._silent: asyncio.TimerHandle | None = None
        """Timer that ends the wait for the headers of a request; None while a request is answered."""
        self._lingering: asyncio.TimerHandle | None = None
        """Timer that closes the connection after the last response; None before."""
        self._refused = False
        """Whether further input is dropped."""
        self._in_head = False
        self._in_body = False
        self._head_bytes = 0
        """Bytes parsed of the current request line and headers."""
        self._unframed = 0
        """Non-body bytes since the last read in which a head began or ended; the parser may buffer all of them."""
        self._framed = 0
        """Bytes of the current read that belong to a body."""
        self._at_boundary = False
        """Whether a head or a message began or ended in the current read."""

    def connection_made(self, transport: Any) -> None:
        """Set options of the socket, and start the header timeout; called by asyncio."""
        super().connection_made(transport)
        if (connection := transport.get_extra_info("socket")) is not None:
            _tune(connection)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes and check the limits; called by asyncio.

        Bytes after a refusal are dropped. While a request is answered, the header timeout is stopped.
        """
        if self._refused:
            if self._lingering is None:
                # The kernel's buffer then fills, and the client stops.
                self.flow.pause_reading()
            return
        self._framed, self._at_boundary = 0, False
        super().data_received(data)
        # A read with the end of one message and the start of the next counts for neither.
        self._unframed = 0 if self._at_boundary else max(0, self._unframed + len(data) - self._framed)
        if self._refused or self.transport.is_closing():
            return
        if self._unframed > self.max_header_bytes:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif self._is_answering():
            self._stop_waiting()
        elif self._silent is None:
            self._wait()

    def on_message_begin(self) -> None:
        """Start to count the head of a request; called by the parser."""
        self._in_head, self._in_body, self._head_bytes, self._at_boundary = True, False, 0, True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count a piece of the request's target.

        Called by the parser. An oversized head stops the parser by an exception.
        """
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header; called by the parser. An oversized head stops the parser by an exception.

        It is also called for trailers, which are dropped: they would change the headers of an admitted request.
        """
        if self._in_head:
            self._count_head(len(name) + len(value) + _FIELD_OVERHEAD)
            # The parser keeps white space behind a value, which is no part of it (RFC 9110, 5.5).
            super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """Stop the header timeout, and let uvicorn start the application; called by the parser.

        If a request starts, its response is written through a transport that, at its end, leaves the client time to
        read it.
        """
        self._in_head, self._in_body, self._at_boundary = False, True, True
        self._stop_waiting()
        before: Any = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self.cycle.transport = _ResponseTransport(self)  # type: ignore[assignment]  # it has the methods that uvicorn uses

    def on_chunk_header(self) -> None:
        """Count the framing of a chunk as body; called by the parser."""
        if self._is_answering():
            self._framed += _CHUNK_FRAMING

    def on_body(self, body: bytes) -> None:
        """Count a piece of a body; called by the parser. A body that arrives after its response counts like headers."""
        if self._is_answering():
            self._framed += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Mark the end of a request; called by the parser."""
        self._in_body, self._at_boundary = False, True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse the request with status 431 if its head is too large, else 400; called by uvicorn if the parser fails.

        `msg`, uvicorn's text, is not sent.
        """
        too_large = self._head_bytes > self.max_header_bytes
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE if too_large else HTTPStatus.BAD_REQUEST)

    def shutdown(self) -> None:
        """Close the connection, after a response in progress; called by uvicorn when the server stops."""
        if self._lingering is not None:
            self.transport.close()
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers; called by asyncio. `exc` is None if the connection was closed in order."""
        self._stop_waiting()
        if self._lingering is not None:
            self._lingering.cancel()
        super().connection_lost(exc)

    def close_after_response(self) -> None:
        """Close the connection now.

        While input still arrives, only end the response, and drop input for up to 5 seconds.
        """
        if self._lingering is not None:
            return
        is_arriving = self._in_head or self._in_body or self._refused
        if not is_arriving or self.pipeline or not self.transport.can_write_eof():
            self.transport.close()
            return
        self._refused = True
        self._stop_waiting()
        self.flow.resume_reading()
        self.transport.write_eof()
        self._lingering = self.loop.call_later(_LINGER_S, self.transport.close)

    def _is_answering(self) -> bool:
        """Return whether a request was passed to the application and its response is not complete."""
        cycle: Any = self.cycle  # uvicorn declares it without its initial None
        return cycle is not None and not cycle.response_complete

    def _count_head(self, size: int) -> None:
        """Count bytes of the current head.

        Raises `_HeadTooLargeError` above the limit, which makes uvicorn refuse the request.
        """
        self._head_bytes += size
        if self._head_bytes > self.max_header_bytes:
            raise _HeadTooLargeError

    def _refuse(self, status: HTTPStatus) -> None:
        """Stop reading, and close the connection.

        Sends `status` unless a response has begun or an earlier one is in progress.

        A request whose body is still arriving is reported to its application as disconnected.
        """
        self._refused = True
        self._stop_waiting()
        self._unset_keepalive_if_required()
        if not self._is_answering():
            # A body that is still arriving belongs to a request that already has its response.
            self._respond(None if self._in_body else status)
        elif not self._in_body:
            # The request is pipelined after one that is being answered.
            self.cycle.keep_alive = False
        elif self.pipeline or self.cycle.response_started:
            self.transport.close()
        else:
            self.cycle.disconnected = True
            self.cycle.waiting_for_100_continue = False
            self.cycle.message_event.set()
            self._respond(status)

    def _respond(self, status: HTTPStatus | None) -> None:
        """Send a whole response with a status and a text, or nothing for None, and close the connection after it."""
        if status is not None:
            text = f"{status.phrase}.".encode()
            if status is HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
                text = b"The request line and headers are larger than %d bytes." % self.max_header_bytes
            elif status is HTTPStatus.REQUEST_TIMEOUT:
                text = b"The request's headers did not arrive within %g seconds." % self.request_within_s
            head = [
                f"HTTP/1.1 {status.value} {status.phrase}".encode(),
                *(b"%b: %b" % header for header in self.server_state.default_headers),
                b"content-type: text/plain; charset=utf-8",
                b"content-length: %d" % len(text),
                b"connection: close",
            ]
            self.transport.write(b"\r\n".join([*head, b"", text]))
        self.close_after_response()

    def _wait(self) -> None:
        """Start the header timeout."""
        self._silent = self.loop.call_later(self.request_within_s, self._disconnect)

    def _stop_waiting(self) -> None:
        """Stop the header timeout; does nothing if it does not run."""
        if self._silent is not None:
            self._silent.cancel()
            self._silent = None

    def _disconnect(self) -> None:
        """Handle the header timeout: refuse a request that has begun, close an idle connection."""
        self._silent = None
        if self._is_answering():
            return
        if self._in_head:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)
        else:
            self.transport.close()


class DrainedWebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol, whose connections are closed by the application when the server stops.

    uvicorn itself closes them before a response in progress has ended. It also logs an error for each connection that
    the application refuses with a response.
    """

    async def send(self, message: Any) -> None:
        """Send an ASGI message; called by the application.

        The last part of a refusal counts as the end of the handshake, so that uvicorn logs no error.
        """
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True

    def shutdown(self) -> None:
        """Close the connection if the application has not accepted it, or has closed it; called by uvicorn."""
        if not self.handshake_complete or self.close_sent:
            super().shutdown()


class _ResponseTransport:
    """Transport that uvicorn writes a response to; closing it leaves the client time to read the response."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing

    def close(self) -> None:
        """Close the connection; input that is still arriving is read and dropped for a while."""
        self._protocol.close_after_response()


def _tune(connection: socket.socket) -> None:
    """Set TCP options of a connection's socket: no delay of small packets, and the limit of unacknowledged data."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # asyncio does not detect TCP on sockets shared by workers; without this, first tokens wait 40 ms for an
    # acknowledgement.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
