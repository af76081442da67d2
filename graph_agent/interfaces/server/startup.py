"""Binds the server's socket, and reports why a server could not start."""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graph_agent.base.errors import ConfigError, GraphAgentError

_FAILED = "not-started"
"""Name of the file by which a worker process reports that it could not start."""
STARTUP_FAILURE = 3
"""Exit status of a server that could not start; the same as uvicorn's."""


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a TCP socket that is bound to an address, and that does not listen yet. Port 0 selects any free port.

    For a name with addresses of both families, IPv4 is used. Raises `ConfigError` if the address does not exist, or the
    port is in use or not permitted for this user.
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
    # A restarted server must not wait for the old connections to time out.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigError(_bind_fault(host, port, error)) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket for clients on this machine, e.g. `http://127.0.0.1:8000`."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"


def _bind_fault(host: str, port: int, error: OSError) -> str:
    """Return the message for an error of binding to an address, with the fix: another port if the port is in use or not
    permitted, otherwise another address.
    """
    about_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
    fix = "take another port" if about_port else "give an address of this machine"
    return f"--host {host} --port {port}: {error.strerror}; {fix}."


class StartupErrors:
    """ASGI middleware that reports a `GraphAgentError` at the start as one line.

    Other errors keep Starlette's stack trace.

    Args:
        app: The application.
        shared: The folder of worker processes, in which a failed start is recorded for the supervisor; None for a
            single process.
        on_start: Called when the application has started; None for nothing.
    """

    def __init__(self, app: ASGIApp, shared: Path | None = None, on_start: Callable[[], None] | None = None) -> None:
        self._app = app
        self._shared = shared
        self._on_start = on_start

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, and `on_start` once it has started; other scopes than the lifespan pass unchanged.

        If the start fails, this is marked in the folder of the workers, if there is one, and the message of a
        `GraphAgentError` replaces the traceback in the log.
        """
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return

        async def send_plain(message: Message) -> None:
            """Send a lifespan message; call `on_start` before the one of a complete start.

            A failed start is marked in the folder of the workers, and a `GraphAgentError` replaces the traceback in its
            message.
            """
            # Starlette sends this message from its `except` block.
            error = sys.exc_info()[1]
            if message["type"] == "lifespan.startup.complete" and self._on_start is not None:
                self._on_start()
            if message["type"] == "lifespan.startup.failed":
                if self._shared is not None:
                    with contextlib.suppress(OSError):
                        (self._shared / _FAILED).touch()
                if isinstance(error, GraphAgentError):
                    message = {**message, "message": f"{error}"}
            await send(message)

        await self._app(scope, receive, send_plain)


def has_failed(shared: Path | None) -> bool:
    """Return whether one of the processes that share a folder could not start; False for None."""
    return shared is not None and (shared / _FAILED).exists()
