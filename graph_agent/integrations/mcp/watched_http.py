"""Wraps an HTTP client to report MCP requests that will never be answered, and requests of the server.

On a failure, the SDK's HTTP transports either end the whole session with all running calls, or log the failure and let
the caller wait forever. This wrapper of an httpx client reports which request was lost and whether it was delivered,
and returns a harmless response to the transport.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx
from mcp.types import RequestId

from graph_agent.base._internal.failure_log import get_logger
from graph_agent.integrations.mcp.messages import Loss, error_reply, root_cause, too_long

logger = get_logger("graph_agent.mcp")

_HEAD = 65_536
"""Maximum bytes of a message that is too long that are searched for its id."""
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_BLANK_BYTES = 4
"""Bytes of the longest blank line, so that one that arrives in pieces is found."""
_ID_LINE = re.compile(rb"^id:([^\r\n]*)", re.MULTILINE)


class BoundedBody:
    """Splits a response's body into whole messages: a JSON body at once, server-sent events one by one.

    Args:
        response: The response.
        request_id: The request that it answers; None for a stream opened for the server's own messages.
        max_bytes: Maximum bytes of one message; a longer one is replaced by an error reply.
        on_server_request: Called with the id of each request of the server in the body, and `request_id`.
    """

    def __init__(
        self,
        response: httpx.Response,
        request_id: RequestId | None,
        max_bytes: int,
        on_server_request: Callable[[RequestId, RequestId], None],
    ) -> None:
        self.has_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        self.last_event_id = ""
        """Id of the newest event; empty before the first event with one."""
        self._response = response
        self._request_id = request_id
        self._max_bytes = max_bytes
        self._on_server_request = on_server_request

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body, a message at a time; raise httpx's read errors.

        Events keep their blank line; a body in JSON is one piece.
        """
        if self.has_events:
            async for event in self._events():
                yield event
        else:
            yield await self._whole()

    async def _whole(self) -> bytes:
        """Return a body that is one message; the error reply that replaces it if it is longer than `max_bytes`."""
        parts: list[bytes] = []
        size = 0
        async for chunk in self._response.aiter_bytes():
            parts.append(chunk)
            size += len(chunk)
            if size > self._max_bytes:
                return self._refusal(b"".join(parts))
        return b"".join(parts)

    async def _events(self) -> AsyncIterator[bytes]:
        """Yield whole events, each with its final blank line.

        An event that is larger than `max_bytes` is replaced by an error event. A rest without a blank line is yielded
        at the end.
        """
        buffer, searched, refused = bytearray(), 0, False
        async for chunk in self._response.aiter_bytes():
            buffer += chunk
            while blank := _BLANK_LINE.search(buffer, searched):
                event = bytes(buffer[: blank.end()])
                del buffer[: blank.end()]
                searched = 0
                if not refused:
                    yield self._checked(event)
                refused = False
            if len(buffer) > self._max_bytes:
                if not refused:
                    yield self._refused_event(bytes(buffer[:_HEAD]))
                refused = True
                del buffer[:-_BLANK_BYTES]
            searched = max(0, len(buffer) - _BLANK_BYTES)
        if buffer and not refused:
            yield bytes(buffer)

    def _checked(self, event: bytes) -> bytes:
        """Return an event, or the error event that replaces one that is too long.

        Of an event that is not too long, the id is noted, and a request of the server in it is reported.
        """
        if len(event) > self._max_bytes:
            return self._refused_event(event[:_HEAD])
        if ids := _ID_LINE.findall(event):
            self.last_event_id = ids[-1].strip().decode(errors="replace")
        if self._request_id is not None and b'"method"' in event and b'"id"' in event:
            self._report_request(event, self._request_id)
        return event

    def _report_request(self, event: bytes, request_id: RequestId) -> None:
        """Call `on_server_request` if an event is a request of the server; anything else, also invalid JSON, is
        ignored.
        """
        try:
            message = json.loads(b"\n".join(_data_lines(event)))
        except ValueError:
            return  # the transport reports it
        if isinstance(message, dict) and "method" in message and isinstance(message.get("id"), int | str):
            self._on_server_request(message["id"], request_id)

    def _refused_event(self, event: bytes) -> bytes:
        """Return the event with the error reply that replaces an event that is too long; empty if its request is
        unknown.
        """
        reply = self._refusal(b"".join(_data_lines(event)))
        return b"event: message\ndata: " + reply + b"\n\n" if reply else b""

    def _refusal(self, head: bytes) -> bytes:
        """Return the error reply that replaces a message that is too long, as JSON.

        The id of its request is that of the response, or that found in `head`, the begin of the message. Without one,
        the message is logged as a warning, and the result is empty.
        """
        refused = too_long(head[:_HEAD], self._max_bytes)
        request_id = self._request_id if self._request_id is not None else refused.request_id
        if request_id is None:
            logger.warning("A message from an MCP server was dropped: %s", refused.reason)
            return b""
        return error_reply(request_id, refused.reason).model_dump_json(by_alias=True, exclude_none=True).encode()


@dataclass(frozen=True, slots=True)
class HttpWatch:
    """Functions to which a `WatchedClient` reports."""

    on_loss: Callable[[RequestId, Loss], None]
    """Called for a request that will not be answered; it may have been answered or cancelled meanwhile."""
    on_server_request: Callable[[RequestId, RequestId], None]
    """Called with the id of a server's request, and the id of the client's request in whose response it arrived."""


def _data_lines(event: bytes) -> list[bytes]:
    """Return the data of a server-sent event, line by line, without the prefix `data:`; empty if it has no data."""
    return [line[5:] for line in event.split(b"\n") if line.startswith(b"data:")]


_END_SESSION_S = 2.0
"""Maximum seconds for the request that ends a session."""
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
"""Errors after which a request has certainly not reached the server."""


class WatchedClient:
    """Wraps an `httpx.AsyncClient`; attributes that it lacks are those of the client.

    Args:
        client: The client.
        watch: Receives the reports.
        max_bytes: Maximum bytes of one message; a longer one is replaced by an error reply.
    """

    def __init__(self, client: httpx.AsyncClient, watch: HttpWatch, max_bytes: int) -> None:
        self._client = client
        self._watching = watch
        self._max_bytes = max_bytes
        self._resuming: dict[str, RequestId] = {}
        """Id of the last event of a response that broke off → the request that it answers."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def __aenter__(self) -> WatchedClient:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Send a request; report it to the watch if its reply is lost.

        A POST raises only a cancellation, and never returns an error status. The DELETE that ends a session raises no
        error of httpx; a GET raises httpx's errors. An exception of the authentication is raised by DELETE and GET.
        """
        if request.method == "POST":
            return await self._post(request, options)
        if request.method == "DELETE":
            return await self._end_session(request, options)
        return await self._get(request, options)

    async def _post(self, request: httpx.Request, options: dict[str, Any]) -> httpx.Response:
        """Send a message; report a request that will not be answered, and return a response that the transport accepts.

        A request that was certainly not sent, or whose authentication failed, is reported as not run; in the second
        case the session stays.
        """
        request_id = _id_of(request)
        try:
            response = await self._client.send(request, **options)
        except _NEVER_SENT as error:
            return self._lost(request, request_id, Loss(root_cause(error), may_have_run=False))
        except httpx.HTTPError as error:
            return self._lost(request, request_id, Loss(root_cause(error), may_have_run=True))
        except Exception as error:  # noqa: BLE001 - an httpx.Auth is user code and may raise anything
            # It fails before the request is sent, and a new session would not help.
            refused = Loss(root_cause(error), may_have_run=False, session_gone=False)
            return self._lost(request, request_id, refused)
        if response.status_code >= 400:
            return self._lost(request, request_id, await _rejection(response))
        if request_id is None or response.status_code >= 300:
            return response
        return self._watch(response, request_id)

    async def _get(self, request: httpx.Request, options: dict[str, Any]) -> httpx.Response:
        """Open a stream of events, or the rest of a response that broke off (by the request's header `last-event-id`).

        A response to a stream of events is returned also with an error status. If the rest of a response cannot be
        read, also because of an error status, the loss of the response's request is reported, and the error is raised.
        """
        # The transport resumes a response by the id of the last event that it has received.
        request_id = self._resuming.pop(request.headers.get("last-event-id", ""), None)
        if request_id is None:
            response = await self._client.send(request, **options)
            return response if response.is_error else self._watch(response, None)
        try:
            response = await self._client.send(request, **options)
            response.raise_for_status()
        except httpx.HTTPError as error:
            self._watching.on_loss(request_id, Loss(root_cause(error), may_have_run=True))
            raise
        return self._watch(response, request_id)

    async def _end_session(self, request: httpx.Request, options: dict[str, Any]) -> httpx.Response:
        """Send the request that ends a session, and return the response.

        After a failure, which is logged at DEBUG, or without an answer for `_END_SESSION_S` seconds, returns an empty
        response of the status 204.
        """
        # Best effort: an unreachable server must not delay or fail the exit.
        try:
            async with asyncio.timeout(_END_SESSION_S):
                return await self._client.send(request, **options)
        except (httpx.HTTPError, TimeoutError) as error:
            logger.debug("An MCP session could not be ended: %r", error)
            return httpx.Response(204, request=request)

    def _lost(self, request: httpx.Request, request_id: RequestId | None, loss: Loss) -> httpx.Response:
        """Report a lost request, and return an empty response with status 202, so that the transport neither raises nor
        waits.

        Args:
            request: The HTTP request.
            request_id: Id of the MCP request in it; None for a message without one, whose loss is only logged.
            loss: How it was lost.
        """
        if request_id is None:
            logger.debug("A message to an MCP server was lost: %s", loss.reason)
        else:
            self._watching.on_loss(request_id, loss)
        # Accepted, without a body: the transport neither raises nor waits for more.
        return httpx.Response(202, request=request)

    def _watch(self, response: httpx.Response, request_id: RequestId | None) -> httpx.Response:
        """Return a response whose body is read in whole messages.

        If it ends or breaks off before the answer, the place is noted, so that the transport can request the rest, or
        else the loss of its request is reported. Without a `request_id`, nothing is reported.
        """

        def ended(last_event_id: str, reason: str) -> None:
            """Note the id of the last event, with which the rest of the response can be requested.

            If there is no such id, report the loss of the request, with `reason`.
            """
            if request_id is None:
                return
            if last_event_id:
                # The server keeps its events; the transport requests the rest with this id.
                self._resuming[last_event_id] = request_id
            else:
                self._watching.on_loss(request_id, Loss(reason, may_have_run=True))

        # The stream below is already decoded, so the headers about its encoding do not apply.
        dropped = {"content-encoding", "content-length", "transfer-encoding"}
        headers = [(key, value) for key, value in response.headers.multi_items() if key not in dropped]
        body = BoundedBody(response, request_id, self._max_bytes, self._watching.on_server_request)
        stream = _WatchedStream(response, ended, body)
        return httpx.Response(response.status_code, headers=headers, stream=stream, request=response.request)


class _WatchedStream(httpx.AsyncByteStream):
    """The body of a response; calls `ended` if it ends or breaks before its reader closes it.

    `ended` receives the id of the last event, empty if there is none, and the reason.
    """

    def __init__(self, response: httpx.Response, ended: Callable[[str, str], None], body: BoundedBody) -> None:
        self._response = response
        self._ended = ended
        self._bounded = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = self._bounded
        try:
            async for piece in body.pieces():
                yield piece
        except httpx.HTTPError as error:
            self._ended(body.last_event_id, root_cause(error))
            raise
        # A reader with a complete answer closes an event stream before this line.
        if body.has_events:
            self._ended(body.last_event_id, "the response ended without an answer")

    async def aclose(self) -> None:
        """Close the response."""
        await self._response.aclose()


def _id_of(request: httpx.Request) -> RequestId | None:
    """Return the JSON-RPC id of a request; None for a notification, or for a reply to the server."""
    message = json.loads(request.content)
    return message.get("id") if "method" in message else None


async def _rejection(response: httpx.Response) -> Loss:
    """Return the loss that an error response means; reads and closes the response.

    A status of 5xx or 408 means that the call may have run, any other that it did not. The session is gone for a 5xx, a
    404, and a 400 with the word `session` in its text.
    """
    status = response.status_code
    try:
        body = " ".join((await response.aread())[:300].decode(errors="replace").split())
    except httpx.HTTPError:
        body = ""
    finally:
        await response.aclose()
    # Some servers answer an unknown session with 400 instead of the specified 404.
    unknown_session = status == 404 or (status == 400 and "session" in body.lower())
    reason = f"HTTP {status} {response.reason_phrase} from {response.url.copy_with(query=None, userinfo=b'')}"
    return Loss(
        f"{reason}: {body}" if body else reason,
        may_have_run=status >= 500 or status == 408,
        session_gone=unknown_session or status >= 500,
    )
