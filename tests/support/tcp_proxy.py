"""A TCP proxy for PostgreSQL's socket that can stop forwarding, as in a network partition."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Proxy:
    """Passes bytes on between its port and a server's socket.

    Args:
        target: The server's socket.
        listener: Bound to a port that was free.
    """

    def __init__(self, target: Path, listener: socket.socket) -> None:
        self._target = target
        self._listener = listener
        self._stalled = threading.Event()
        self._only = b""
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.port: int = listener.getsockname()[1]
        self._begin(self._accept)

    def stall(self, only: bytes = b"") -> None:
        """Stop forwarding in both directions, and keep every connection open.

        Args:
            only: Only on connections whose first packet holds this.
        """
        self._only = only
        self._stalled.set()

    def close(self) -> None:
        """Close everything."""
        for end in [self._listener, *self._ends]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)
        for end in [self._listener, *self._ends]:
            end.close()

    def _begin(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._ends.append(client)
                self._begin(self._connect, client)

    def _connect(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        self._ends.append(server)
        with contextlib.suppress(OSError):
            first = client.recv(65536)
            if not self._swallows(first):
                server.connect(str(self._target))
                server.sendall(first)
                self._begin(self._pass_on, server, client, first)
            self._pass_on(client, server, first)

    def _pass_on(self, source: socket.socket, to: socket.socket, first: bytes) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not self._swallows(first):
                    to.sendall(data)
            if not self._swallows(first):
                to.shutdown(socket.SHUT_RDWR)

    def _swallows(self, first: bytes) -> bool:
        return self._stalled.is_set() and self._only in first


@contextmanager
def proxy_to(target: Path) -> Iterator[Proxy]:
    """A proxy, as long as the context lasts."""
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = Proxy(target, listener)
    try:
        yield proxy
    finally:
        proxy.close()
