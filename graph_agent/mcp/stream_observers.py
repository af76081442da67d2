"""Observes messages in the streams between the SDK's session and its transport.

The SDK exposes neither the request id of a call, nor whether the request was passed to the transport, nor that the
server closed the connection. These streams detect all three.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCRequest, RequestId

from graph_agent.mcp.messages import Loss, UnreadableError, replacement_for, unreadable
from graph_agent.mcp.stdio import Incoming, Outgoing


@dataclass(slots=True, eq=False)
class Call:
    """One request in progress. `lost` resolves when it is certain that no answer will arrive."""

    lost: asyncio.Future[Loss] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    request_id: RequestId | None = None
    sent: bool = False


current_call: ContextVar[Call | None] = ContextVar("mcp_call", default=None)
"""The call whose request the current task is about to send."""


class OutgoingTap:
    """Records the id of the current call's request, and whether the transport accepted it."""

    def __init__(self, stream: Outgoing) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> OutgoingTap:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stream.aclose()

    async def send(self, message: SessionMessage) -> None:
        """Send a message. Raises the stream's errors if its transport is closed."""
        call = current_call.get()
        request = message.message.root
        if call is None or call.request_id is not None or not isinstance(request, JSONRPCRequest):
            return await self._stream.send(message)
        call.request_id = request.id
        # Set first: a cancelled send may have been accepted, a failed one was not.
        call.sent = True
        try:
            await self._stream.send(message)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            call.sent = False
            raise


class IncomingTap:
    """Replaces an unreadable reply by an error reply, and calls `on_end` when the transport has ended.

    `on_unreadable` is called with each unreadable message whose request is unknown.
    """

    def __init__(
        self, stream: Incoming, on_end: Callable[[], None], on_unreadable: Callable[[UnreadableError], None]
    ) -> None:
        self._stream = stream
        self._on_end = on_end
        self._on_unreadable = on_unreadable

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> IncomingTap:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> IncomingTap:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            message = await self._stream.__anext__()
        except StopAsyncIteration:
            self._on_end()
            raise
        # Other transport errors are reported at their source.
        if isinstance(message, ValueError):
            error = unreadable(message)
            message = replacement_for(error) or error
        if isinstance(message, UnreadableError):
            self._on_unreadable(message)
        return message
