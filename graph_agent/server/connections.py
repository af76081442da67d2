"""Connections that say nothing: closed after a while, so that half-open ones do not pile up."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which closes a connection whose first request does not come in time.

    uvicorn itself bounds the time between requests only; a client that connects and sends nothing, or half a header,
    would stay for ever.
    """

    first_request_s = 30.0
    """Seconds for the headers of a connection's first request; one value for the process."""

    def connection_made(self, transport: Any) -> None:
        """As asyncio calls it."""
        super().connection_made(transport)
        self._silent = asyncio.get_running_loop().call_later(self.first_request_s, self._hang_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio calls it."""
        self._silent.cancel()
        super().connection_lost(exc)

    def _hang_up(self) -> None:
        if getattr(self, "cycle", None) is None:  # uvicorn declares it without the None that it begins with
            self.transport.close()
