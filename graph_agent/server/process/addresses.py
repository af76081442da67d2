"""The address that a server is to listen at: bound, or refused with a word on what to do."""

from __future__ import annotations

import errno
import socket

from graph_agent.errors import ConfigError


def bound(host: str, port: int) -> socket.socket:
    """A TCP socket bound to an address; it does not listen yet.

    Args:
        host: An IPv4 or IPv6 address, or a name for one.
        port: The port; 0 for any free one.

    Raises:
        ConfigError: When there is no such address here, or the port is taken or not for this user.
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # Of a name with both, such as localhost, the IPv4 address: it is the one that all clients try.
        family, kind, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        # Told that it is TCP, asyncio sends small pieces at once; else each first token waits 40 ms for an
        # acknowledgement.
        listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    except OSError as error:
        raise ConfigError(_why(host, port, error)) from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigError(_why(host, port, error)) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a client on this machine reaches what listens there."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"


def _why(host: str, port: int, error: OSError) -> str:
    about_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
    fix = "take another port" if about_port else "give an address of this machine"
    return f"--host {host} --port {port}: {error.strerror}; {fix}."
