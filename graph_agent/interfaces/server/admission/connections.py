"""Limits the size and arrival time of everything on a connection except request bodies."""

from __future__ import annotations

import asyncio
import socket
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

_UNREAD_MS = 60_000
"""Milliseconds that a client may leave sent data unacknowledged before the system drops the connection."""
_FIELD_OVERHEAD = 32
"""Bytes that a header counts in addition to its name and value, as in HTTP/2, because many short headers take memory,
too.
"""
_CHUNK_FRAMING = 20
"""Bytes of a chunk for its size and line ends. They do not count against the limit; chunk extensions do."""
_LINGER_S = 5.0
"""Seconds for which input is read and dropped after a refusal.

Closing at once would reset the connection, and the client would lose the response.
"""


class _HeadTooLargeError(Exception):
    """The request line and the headers exceed the limit. It is raised in a callback of the parser, to stop it."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits for request lines, headers, trailers and chunk extensions.

    There is one object per connection.

    uvicorn itself limits only the idle time between requests, and its httptools parser collects headers without a
    limit. A request over a limit receives status 431, or 408 if its headers are late, and the connection is closed. No
    status is sent if the response to the request has started, or an earlier response is still being sent. Trailers are
    dropped. The *head* of a request is its request line and headers.
    """

    request_within_s = 30.0
    """Seconds in which the headers of a request must arrive, from the connection or the last response.

    One value for the process.
    """
    max_header_bytes = 65_536
    """Maximum bytes of a request without its body. One value for the process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._silent: asyncio.TimerHandle | None = None
        """Timer that ends the wait for the headers of a request; None while a request is answered."""
        self._lingering: asyncio.TimerHandle | None = None
        """Timer that closes the connection after the last response; None before."""
        self._refused = False
        """Whether the request was refused, so that further input is dropped."""
        self._in_head = False
        self._in_body = False
        self._head_bytes = 0
        """Bytes of the current request's head that were parsed so far."""
        self._unframed = 0
        """Bytes outside bodies since the last read in which a head began or ended.

        The parser may have buffered all of them.
        """
        self._framed = 0
        """Bytes of the current read that belong to a body."""
        self._at_boundary = False
        """Whether a head or a message began or ended in the current read."""

    def connection_made(self, transport: Any) -> None:
        """Set options of the connection's socket, if it has one, and start the header timeout. asyncio calls it."""
        super().connection_made(transport)
        if (connection := transport.get_extra_info("socket")) is not None:
            _tune(connection)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and refuse the request with 431 if more than `max_header_bytes` outside bodies may be
        buffered.

        asyncio calls it. Bytes after a refusal are dropped, and reading is paused unless the connection is already
        waiting to be closed. Otherwise the header timeout is stopped while a request is answered, and started if it
        does not run.
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
        """Start to count the head of a request, i.e. its request line and headers, from 0. The parser calls it."""
        self._in_head, self._in_body, self._head_bytes, self._at_boundary = True, False, 0, True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count a piece of the request's target.

        The parser calls it, and stops at the exception for a head that is too large.
        """
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count and store a header, without white space behind its value. The parser calls it, and stops at the
        exception for a head that is too large.

        It is also called for trailers, which are dropped, because they would change the headers of an admitted request.
        """
        if self._in_head:
            self._count_head(len(name) + len(value) + _FIELD_OVERHEAD)
            # The parser keeps white space behind a value, which is no part of it (RFC 9110, 5.5).
            super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """Stop the header timeout, and let uvicorn start the application. The parser calls it.

        The response is written through a transport that leaves the client time to read it before the connection is
        closed.
        """
        self._in_head, self._in_body, self._at_boundary = False, True, True
        self._stop_waiting()
        before: Any = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self.cycle.transport = _ResponseTransport(self)  # type: ignore[assignment]  # it has the methods that uvicorn uses

    def on_chunk_header(self) -> None:
        """Count the framing of a chunk as part of the body, unless the response is already complete. The parser calls
        it.
        """
        if self._is_answering():
            self._framed += _CHUNK_FRAMING

    def on_body(self, body: bytes) -> None:
        """Count a piece of a body. A body that arrives after its response counts like headers. The parser calls it."""
        if self._is_answering():
            self._framed += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Record that the request has ended, so that its body no longer arrives. The parser calls it."""
        self._in_body, self._at_boundary = False, True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse the request: with status 431 if its head is too large, otherwise 400. uvicorn calls it if the parser
        fails.

        uvicorn's text `msg` is not sent.
        """
        too_large = self._head_bytes > self.max_header_bytes
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE if too_large else HTTPStatus.BAD_REQUEST)

    def shutdown(self) -> None:
        """Close the connection, after a response in progress; at once if only dropped input is awaited. uvicorn calls
        it when the server stops.
        """
        if self._lingering is not None:
            self.transport.close()
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers. asyncio calls it; `exc` is None if the connection was closed regularly."""
        self._stop_waiting()
        if self._lingering is not None:
            self._lingering.cancel()
        super().connection_lost(exc)

    def close_after_response(self) -> None:
        """Close the connection after the response; does nothing if the connection is already waiting to be closed.

        It is closed at once if no input is arriving, if a further request is waiting in the pipeline, or if the
        transport cannot close one direction. Otherwise only the sending direction is closed now, input is dropped, and
        the connection is closed after 5 seconds.
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
        """Add bytes to the size of the current head; raise `_HeadTooLargeError` above the limit, so that uvicorn
        refuses the request.
        """
        self._head_bytes += size
        if self._head_bytes > self.max_header_bytes:
            raise _HeadTooLargeError

    def _refuse(self, status: HTTPStatus) -> None:
        """Refuse the current request: drop further input, send `status` if that is possible, and close the connection.

        - If no request is being answered, the status is sent; but nothing if a body still arrives whose response was
          sent.
        - If the request is pipelined behind one that is being answered, that response is completed, and no status is
          sent.
        - If the response to the request has begun, or others are pipelined behind it, the connection is closed at once.
        - If the body of an unanswered request still arrives, the application gets a disconnect, and the status is sent.
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
        """Send a whole response with a status and a line of text, and close the connection after it. For None, only
        close it.

        The text is the status's phrase or, for 431 and 408, a sentence with the limit that was exceeded.
        """
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
        """Handle the header timeout: refuse a request whose headers have begun to arrive (408), and close an idle
        connection.

        Does nothing while a request is answered.
        """
        self._silent = None
        if self._is_answering():
            return
        if self._in_head:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)
        else:
            self.transport.close()


class DrainedWebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol, changed so that the application closes the connections when the server stops.

    uvicorn would close them before a response in progress has ended, and would log an error for each connection that
    the application refuses with a response.
    """

    async def send(self, message: Any) -> None:
        """Send an ASGI message of the application.

        The last part of a refusal ends the handshake, so that uvicorn logs no error.
        """
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True

    def shutdown(self) -> None:
        """Close the connection, but only if the application has not accepted it, or has closed it. uvicorn calls it
        when the server stops.
        """
        if not self.handshake_complete or self.close_sent:
            super().shutdown()


class _ResponseTransport:
    """The transport to which uvicorn writes a response. Closing it leaves the client time to read the response."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing

    def close(self) -> None:
        """Close the connection after the response; input that is still arriving is dropped for up to 5 seconds."""
        self._protocol.close_after_response()


def _tune(connection: socket.socket) -> None:
    """Set TCP options of a connection's socket: small packets are sent without delay, and a client that does not
    acknowledge data for `_UNREAD_MS` milliseconds loses the connection.

    Does nothing for a socket that is not of TCP; a system without the second option ignores it.
    """
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # asyncio does not detect TCP on sockets shared by workers; without this, first tokens wait 40 ms for an
    # acknowledgement.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
