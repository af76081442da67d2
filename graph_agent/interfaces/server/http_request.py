"""Reads the path of a request, watches its client, and gives its response an id."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

T = TypeVar("T")

ANTHROPIC_HEADER = "request-id"
OPENAI_HEADER = "x-request-id"


def new_request_id() -> str:
    """Return a random id for a response, e.g. `req_3f…`."""
    return f"req_{uuid.uuid4().hex}"


def add_request_id(message: Message) -> None:
    """Add the headers of the request id, OpenAI's and Anthropic's, to the start of a response.

    Both have the same id: that of a header that is set already, or a new one.
    """
    headers = MutableHeaders(scope=message)
    headers.setdefault(OPENAI_HEADER, headers.setdefault(ANTHROPIC_HEADER, new_request_id()))


def path_of(scope: Scope) -> str:
    """Return a request's path without the mount path of the application."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if path == root or path.startswith(f"{root}/") else path


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """Run a coroutine and return its result; if the request's client disconnects first, cancel it and return None.

    Exceptions of the coroutine are raised. If this call is cancelled, the coroutine is cancelled, too; in any case it
    has ended on return. The request's body must have been read before, so that `receive` returns only the disconnect.
    """

    async def disconnect() -> None:
        """Wait until the client disconnects."""
        while (await receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.create_task(work), asyncio.create_task(disconnect())
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        leaving.cancel()
        # The work must have ended before its resources are released.
        await asyncio.gather(working, leaving, return_exceptions=True)
    return None if working.cancelled() else working.result()


class WholeAnswer(Response):
    """A response that is sent as a whole. Assign `close` to release resources afterwards."""

    close: Callable[[], Awaitable[None]] | None = None
    """Called when the response was sent or could not be sent; None if there is nothing to release."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, then call `close` if it is set, also if sending fails."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self.close is not None:
                await self.close()
