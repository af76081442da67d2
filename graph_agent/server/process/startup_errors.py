"""Startup failures of a server, reported in one line."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graph_agent.errors import GraphAgentError

_FAILED = "not-started"
STARTUP_FAILURE = 3
"""Exit status of a server that could not start; the same as uvicorn's."""


class StartupErrors:
    """ASGI middleware that reports a startup failure as the message of its `GraphAgentError`, not as a stack trace.

    Other errors keep Starlette's stack trace.

    Args:
        app: The application.
        shared: The folder of the worker processes, in which the failure is recorded for the supervisor; None for a
            single process.
    """

    def __init__(self, app: ASGIApp, shared: Path | None = None) -> None:
        self._app = app
        self._shared = shared

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application; only the message of a failed startup is replaced."""
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return

        async def send_plain(message: Message) -> None:
            # Starlette sends this message from its `except` block.
            error = sys.exc_info()[1]
            if message["type"] == "lifespan.startup.failed":
                if self._shared is not None:
                    with contextlib.suppress(OSError):
                        (self._shared / _FAILED).touch()
                if isinstance(error, GraphAgentError):
                    message = {**message, "message": f"{error}"}
            await send(message)

        await self._app(scope, receive, send_plain)


def has_failed(shared: Path | None) -> bool:
    """Return whether one of the processes that share a folder could not start; False without a folder."""
    return shared is not None and (shared / _FAILED).exists()
