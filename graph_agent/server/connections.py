"""Connections that say nothing: closed after a while, so that half-open ones do not pile up."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_UNREAD_MS = 60_000
"""Milliseconds that a client may leave unread what the system has sent, also after its connection was closed here."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which closes a connection whose next request does not come in time.

    uvicorn itself bounds the silence between requests only; a client that connects and sends nothing, or half a
    header, would stay for ever.
    """

    request_within_s = 30.0
    """Seconds for the headers of a request, from the connection or from its first byte; one value for the process."""

    _silent: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """As asyncio calls it."""
        super().connection_made(transport)
        if (connection := transport.get_extra_info("socket")) is not None:
            _tune(connection)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """As asyncio calls it."""
        super().data_received(data)
        if self._is_answering():
            self._stop_waiting()
        elif self._silent is None:
            self._wait()

    def on_headers_complete(self) -> None:
        """As the parser calls it."""
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio calls it."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        cycle: Any = getattr(self, "cycle", None)  # uvicorn declares it without the None that it begins with
        return cycle is not None and not cycle.response_complete

    def _wait(self) -> None:
        self._silent = asyncio.get_running_loop().call_later(self.request_within_s, self._hang_up)

    def _stop_waiting(self) -> None:
        if self._silent is not None:
            self._silent.cancel()
            self._silent = None

    def _hang_up(self) -> None:
        self._silent = None
        if not self._is_answering():
            self.transport.close()


def _tune(connection: socket.socket) -> None:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # Else first tokens wait 40 ms for an acknowledgement where workers share a socket: asyncio does not see it is TCP.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
