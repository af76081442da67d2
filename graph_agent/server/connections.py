"""Bounds the size and the time of everything a connection receives outside of request bodies."""

from __future__ import annotations

import asyncio
import socket
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_UNREAD_MS = 60_000
"""Milliseconds that a client may leave unread what the system has sent, also after its connection was closed here."""
_FIELD_OVERHEAD = 32
"""Bytes that a header counts beside its name and value, as in HTTP/2: many short headers take memory too."""
_CHUNK_FRAMING = 20
"""Bytes of a chunk that are its size and line ends, which every client sends; the rest of its first line counts."""
_LINGER_S = 5.0
"""Seconds that input is read and dropped after a refusal: closing at once would reset the connection, and the client
would lose the response."""


class _HeadTooLargeError(Exception):
    """The request line and the headers are over the limit; ends the parser's work on what was received."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits for what is not a body: request lines, headers, trailers, chunk extensions.

    uvicorn itself bounds the silence between requests only, and its httptools parser collects headers without end.
    A request over a limit is answered 431, or 408 when its headers are late, and the connection is closed. No status
    is sent where the response to that request has begun, or an earlier one is still being sent. Trailers are dropped.
    """

    request_within_s = 30.0
    """Seconds for the headers of a request, from the connection or from its first byte; one value for the process."""
    max_header_bytes = 65_536
    """Bytes of a request outside of its body; one value for the process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._silent: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._refused = False
        """Whether further input is dropped."""
        self._in_head = False
        self._in_body = False
        self._head_bytes = 0
        """Size of the current request line and headers, as far as they are parsed."""
        self._unframed = 0
        """Bytes outside of bodies since the reads in which a head began or ended: the parser may hold all of them."""
        self._framed = 0
        """Bytes of the current read that belong to a body."""
        self._at_boundary = False
        """Whether a head or a message began or ended in the current read."""

    def connection_made(self, transport: Any) -> None:
        """As asyncio calls it."""
        super().connection_made(transport)
        if (connection := transport.get_extra_info("socket")) is not None:
            _tune(connection)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """As asyncio calls it."""
        if self._refused:
            if self._lingering is None:
                self.flow.pause_reading()
            return
        self._framed, self._at_boundary = 0, False
        super().data_received(data)
        # A read that holds the end of one message and the beginning of the next is not divided between them.
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
        """As the parser calls it."""
        self._in_head, self._in_body, self._head_bytes, self._at_boundary = True, False, 0, True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """As the parser calls it, with pieces of the request's target."""
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """As the parser calls it, also for trailers: they would change the headers of a request that was let in."""
        if self._in_head:
            self._count_head(len(name) + len(value) + _FIELD_OVERHEAD)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """As the parser calls it."""
        self._in_head, self._in_body, self._at_boundary = False, True, True
        self._stop_waiting()
        before: Any = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self.cycle.transport = _ResponseTransport(self)  # type: ignore[assignment]  # it has the methods in use

    def on_chunk_header(self) -> None:
        """As the parser calls it."""
        if self._is_answering():
            self._framed += _CHUNK_FRAMING

    def on_body(self, body: bytes) -> None:
        """As the parser calls it; a body that arrives after its response is not read, and counts like headers."""
        if self._is_answering():
            self._framed += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """As the parser calls it."""
        self._in_body, self._at_boundary = False, True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """As uvicorn calls it when the parser fails, also by an error of a callback."""
        too_large = self._head_bytes > self.max_header_bytes
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE if too_large else HTTPStatus.BAD_REQUEST)

    def shutdown(self) -> None:
        """As uvicorn calls it when the server stops."""
        if self._lingering is not None:
            self.transport.close()
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio calls it."""
        self._stop_waiting()
        if self._lingering is not None:
            self._lingering.cancel()
        super().connection_lost(exc)

    def close_after_response(self) -> None:
        """Close the connection behind its last response; input that is still arriving is dropped for a while."""
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
        cycle: Any = self.cycle  # uvicorn declares it without the None that it begins with
        return cycle is not None and not cycle.response_complete

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self.max_header_bytes:
            raise _HeadTooLargeError

    def _refuse(self, status: HTTPStatus) -> None:
        """Read nothing more, and close; the response is sent where none is under way."""
        self._refused = True
        self._stop_waiting()
        self._unset_keepalive_if_required()
        if not self._is_answering():
            # What arrives of the body of an answered request has its response.
            self._respond(None if self._in_body else status)
        elif not self._in_body:
            # The request is pipelined behind one that is being answered.
            self.cycle.keep_alive = False
        elif self.pipeline or self.cycle.response_started:
            self.transport.close()
        else:
            self.cycle.disconnected = True
            self.cycle.waiting_for_100_continue = False
            self.cycle.message_event.set()
            self._respond(status)

    def _respond(self, status: HTTPStatus | None) -> None:
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
        self._silent = self.loop.call_later(self.request_within_s, self._hang_up)

    def _stop_waiting(self) -> None:
        if self._silent is not None:
            self._silent.cancel()
            self._silent = None

    def _hang_up(self) -> None:
        self._silent = None
        if self._is_answering():
            return
        if self._in_head:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)
        else:
            self.transport.close()


class _ResponseTransport:
    """The transport as a response uses it; closing it leaves the client time to read the response.

    Args:
        protocol: Of the connection.
    """

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing

    def close(self) -> None:
        """Close the connection, with input that is still arriving read for a while."""
        self._protocol.close_after_response()


def _tune(connection: socket.socket) -> None:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # Else first tokens wait 40 ms for an acknowledgement where workers share a socket: asyncio does not see it is TCP.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
