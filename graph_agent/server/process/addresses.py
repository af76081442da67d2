"""Binding of a server's listening socket, with an error that names the fix."""

from __future__ import annotations

import errno
import socket

from graph_agent.errors import ConfigError


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a TCP socket bound to an address; it does not listen yet.

    Args:
        host: An IPv4 or IPv6 address, or a host name.
        port: The port; 0 for any free one.

    Raises:
        ConfigError: If this machine has no such address, or the port is in use or not permitted for this user.
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # Prefer IPv4 for names with both families, such as localhost: all clients try it.
        family, kind, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        # asyncio sets TCP_NODELAY only if the protocol is TCP; without it each first token waits 40 ms for an
        # acknowledgement.
        listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    except OSError as error:
        raise ConfigError(_bind_fault(host, port, error)) from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigError(_bind_fault(host, port, error)) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket, for clients on this machine."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"


def _bind_fault(host: str, port: int, error: OSError) -> str:
    about_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
    fix = "take another port" if about_port else "give an address of this machine"
    return f"--host {host} --port {port}: {error.strerror}; {fix}."
