"""Watches the streams of messages between a client and an MCP server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

import anyio
from anyio.abc import AsyncResource
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCRequest, RequestId

from graph_agent.integrations.mcp.messages import Loss, UnreadableError, replacement_for, unreadable
from graph_agent.integrations.mcp.stdio import Incoming, Outgoing
from graph_agent.integrations.mcp.suspended import AskingCall

Stream = TypeVar("Stream", bound=AsyncResource)


@dataclass(slots=True, eq=False)
class CallerRequests:
    """The requests of one caller, one at a time."""

    lost: asyncio.Future[Loss] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Resolved once no answer can arrive any more, with the reason."""
    request_id: RequestId | None = None
    """Id of the newest request; None before the first."""
    sent: bool = False
    """Whether the newest request may have reached the server."""
    answered: bool = False
    """Whether the caller's work has ended, so that all of its requests are answered."""
    asking: AskingCall = field(default_factory=AskingCall)
    """State of the call for assigning the server's questions."""


current_requests: ContextVar[CallerRequests | None] = ContextVar("mcp_call", default=None)
"""The call whose requests the current task sends; None outside a call."""


class _Tap(Generic[Stream]):
    """A stream of messages that is read or written through this object; all else is the stream's."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stream.aclose()


class OutgoingTap(_Tap[Outgoing]):
    """Records the id of the current call's newest request, and whether the transport accepted it."""

    async def send(self, message: SessionMessage) -> None:
        """Send a message. Of a request, the id and whether it was sent are recorded in the caller's `CallerRequests`.

        A request counts as sent if the send was cancelled, because the transport may have accepted it. Raises
        `anyio.ClosedResourceError` or `BrokenResourceError` if the transport is closed; the request then counts as not
        sent.
        """
        call = current_requests.get()
        request = message.message.root
        if call is None or not isinstance(request, JSONRPCRequest):
            return await self._stream.send(message)
        call.request_id = request.id
        # Set first: a cancelled send may have been accepted, a failed one was not.
        call.sent = True
        try:
            await self._stream.send(message)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            call.sent = False
            raise


class IncomingTap(_Tap[Incoming]):
    """Replaces unreadable replies by error replies, and detects the end of the transport.

    Args:
        stream: The messages from the transport.
        on_end: Called when the transport has ended.
        on_unreadable: Called with each unreadable message whose request is unknown.
    """

    def __init__(
        self, stream: Incoming, on_end: Callable[[], None], on_unreadable: Callable[[UnreadableError], None]
    ) -> None:
        super().__init__(stream)
        self._on_end = on_end
        self._on_unreadable = on_unreadable

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
