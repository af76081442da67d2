"""Ports of servers that are started again at the same address."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A loopback port for servers that bind to it one after another, with `SO_REUSEADDR`.

    Between them, the system gives the port to no process that asks for a free one, and to no connection.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        # A socket that listens would keep the servers away.
        yield int(holder.getsockname()[1])
