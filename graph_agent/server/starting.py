"""Why a server could not start, in the words meant for whoever started it."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graph_agent.errors import GraphAgentError

_FAILED = "not-started"
STARTUP_FAILURE = 3
"""Exit status of a server that could not start, as uvicorn has it."""


class PlainStart:
    """An application that says in one line why it could not start, where Starlette would give a stack trace.

    Only errors of ours are told so: each of them says what happened, what was given, and the fix.

    Args:
        app: The application.
        shared: The folder of the processes that serve together, where it is noted for the one that started them; None
            for a process that serves alone.
    """

    def __init__(self, app: ASGIApp, shared: Path | None = None) -> None:
        self._app = app
        self._shared = shared

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve; only the message of a start that failed is another."""
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return

        async def plainly(message: Message) -> None:
            # Starlette sends its message while it handles the error.
            error = sys.exc_info()[1]
            if message["type"] == "lifespan.startup.failed":
                if self._shared is not None:
                    with contextlib.suppress(OSError):
                        (self._shared / _FAILED).touch()
                if isinstance(error, GraphAgentError):
                    message = {**message, "message": f"{error}"}
            await send(message)

        await self._app(scope, receive, plainly)


def has_failed(shared: Path | None) -> bool:
    """Whether one of the processes that share a folder could not start; False where there is no folder."""
    return shared is not None and (shared / _FAILED).exists()
