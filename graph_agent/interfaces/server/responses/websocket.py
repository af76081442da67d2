"""Serves the Responses API over a WebSocket: each message is a request, answered by the events of its stream.

A message becomes a request to this application's own `POST /v1/responses`, so that keys, limits, checks and errors are
those of HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
from starlette.types import Message, Scope
from starlette.websockets import WebSocket, WebSocketDisconnect

from graph_agent.base._internal.json_bounds import JsonBounds, JsonBoundsError, JsonMeter, TooManyValuesError
from graph_agent.interfaces.server.admission.body import SMALL_BYTES, ReplayedBody
from graph_agent.interfaces.server.error_responses import openai_error
from graph_agent.interfaces.server.problems import InvalidRequestError, ProblemError
from graph_agent.interfaces.server.settings import ServerSettings

CONNECTION_S = 3600.0
"""Maximum seconds that a connection lasts. A response that has begun is completed first."""
_MESSAGE_BYTES = 1_000
"""Bytes that a waiting message counts in addition to its content."""
_POLICY_VIOLATION, _SERVICE_RESTART = 1008, 1012
_OWN_HEADERS = ("connection", "upgrade", "content-length", "transfer-encoding", "idempotency-key", "content-type")
_SCOPE = ("asgi", "http_version", "server", "client", "root_path", "path", "raw_path", "query_string")
"""Keys of the connection's ASGI scope that are copied to the scope of its requests."""
_SNAPSHOTS = tuple(f"response.{name}" for name in ("created", "in_progress", "completed", "incomplete", "failed"))
"""Types of events that contain the whole response."""
_ENDINGS = _SNAPSHOTS[2:]
"""Types of events that end a response."""


@dataclass(frozen=True, slots=True)
class _Unstored:
    """The newest response of a connection that is not stored. It is kept as long as the connection lasts."""

    id: str
    """Id of the response."""
    base: str | None
    """Id of the stored response with which the conversation begins; None if there is none."""
    items: list[Any]
    """The items of the conversation after `base`, with the output of the response."""


class ResponsesSocket:
    """Answers the messages of one accepted connection one by one.

    A response that is not stored is kept in memory, so that the next message of the connection can continue it.

    Args:
        websocket: The connection, which is accepted already.
        settings: Limits of the server.
        stopping: Set when the server stops.
        lasts_s: Maximum seconds of the connection.
    """

    def __init__(
        self, websocket: WebSocket, settings: ServerSettings, stopping: asyncio.Event, lasts_s: float = CONNECTION_S
    ) -> None:
        self._websocket = websocket
        self._bounds = JsonBounds(values=settings.max_body_values, depth=settings.max_body_depth)
        self._stopping = stopping
        self._lasts_s = lasts_s
        self._messages: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        """The messages that wait, and None at their end."""
        self._room = settings.max_body_bytes
        """Bytes that further messages may have until waiting ones are answered."""
        self._left = asyncio.Event()
        """Set when the client has left, or does not read."""
        self._close: tuple[int, str] | None = None
        """Code and reason with which the server closes the connection; None if it does not close it."""
        self._previous: _Unstored | None = None
        """The newest response of the connection that is not stored; None if there is none."""

    async def serve(self) -> None:
        """Answer messages until the client leaves, the connection has lasted its time, or the server stops.

        A response that has begun is completed first, unless the client has left. Then the connection is closed, after
        an error event if its time is over. It is also closed if the client does not read, or if more bytes of requests
        wait than one body may have.
        """
        tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._stop())]
        try:
            until = asyncio.get_running_loop().time() + self._lasts_s
            while (message := await self._next(until)) is not None and await self._answer(message):
                pass
            if self._close is not None:
                await self._websocket.close(*self._close)
        except TimeoutError:
            text = "The connection has reached its limit of 60 minutes; open a new one."
            error = {"type": "invalid_request_error", "code": "websocket_connection_limit_reached", "message": text}
            await self._send(_error_event(400, error))
            await self._websocket.close()
        except WebSocketDisconnect:
            pass
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _next(self, until: float) -> str | bytes | None:
        """Wait for the next message, return it, and give its bytes free for further messages.

        None if the client has left or the server is stopping. Raises `TimeoutError` at the loop time `until`.
        """
        if asyncio.get_running_loop().time() >= until:
            raise TimeoutError
        async with asyncio.timeout_at(until):
            message = await self._messages.get()
        if message is None or self._left.is_set() or self._stopping.is_set():
            return None
        self._room += _size(message)
        return message

    async def _stop(self) -> None:
        """Wait until the server is stopping, then end the queue of messages, so that the connection is closed with code
        1012.
        """
        await self._stopping.wait()
        self._close = (_SERVICE_RESTART, "The server is stopping.")
        self._messages.put_nowait(None)

    async def _read(self) -> None:
        """Queue the client's messages until it leaves, then end the queue and set `_left`.

        If more bytes wait than one body may have, stop reading in the same way, so that the connection is closed as a
        policy violation.
        """
        # A server that does not read is not notified when a client leaves.
        with contextlib.suppress(WebSocketDisconnect):
            while (received := await self._websocket.receive())["type"] != "websocket.disconnect":
                message = received.get("text") or received.get("bytes") or b""
                # Counted in bytes: a queue of a few large messages takes as much memory as many small ones.
                self._room -= _size(message)
                if self._room < 0 and not self._messages.empty():
                    self._close = (_POLICY_VIOLATION, "Too many requests wait; read the response to each one first.")
                    break
                self._messages.put_nowait(message)
        self._left.set()
        self._messages.put_nowait(None)

    async def _answer(self, message: str | bytes) -> bool:
        """Run the request in a message, and send the events of the response; return whether the answer was sent
        completely.

        An invalid message is answered with an error event. The answer is incomplete if the client does not read it. A
        response that is not stored is kept in memory, so that later requests may continue it. It is dropped when
        another such response has ended, or a request that continues it has failed or is stored.
        """
        try:
            if len(message) > SMALL_BYTES:
                given = await anyio.to_thread.run_sync(self._request_of, message)
            else:
                given = self._request_of(message)
        except ProblemError as problem:
            await self._send(_error_event(problem.status, openai_error(problem)["error"]))
            return True
        body = {**given, "stream": True}
        previous = self._previous
        named = previous if previous is not None and previous.id == given.get("previous_response_id") else None
        # An input of another type is refused by the checks of the request.
        if named is not None and isinstance(given.get("input"), str | list):
            # The response is not stored, so its items are sent along.
            body |= {"previous_response_id": named.base, "input": [*named.items, *_items(given["input"])]}
        named_id = named.id if named is not None else None
        exchange = _Exchange(self._websocket, self._left, named_id, wants_end=given.get("store") is False)
        scope, content = self._scope(), json.dumps(body).encode()
        await self._websocket.app(scope, ReplayedBody(content, self._disconnected), exchange.send)
        if (ended := exchange.ended) is not None:
            items = [*_items(body["input"]), *ended["output"]]
            self._previous = _Unstored(ended["id"], body.get("previous_response_id"), items)
        elif named is not None:
            self._previous = None
        return exchange.is_complete

    def _request_of(self, message: str | bytes) -> dict[str, Any]:
        """Return the body of the request in a message, without `type`, `stream`, `stream_options` and `background`.

        Raises `ProblemError` if the message is not JSON within the limits (`too_large` or `invalid`), is not of type
        `response.create`, or asks for the background.
        """
        content = message.encode("utf-8", "surrogatepass") if isinstance(message, str) else message
        try:
            JsonMeter(self._bounds).feed(content)
            given = json.loads(content)
        except TooManyValuesError as error:
            raise ProblemError("too_large", str(error)) from None
        except JsonBoundsError as error:
            raise InvalidRequestError(str(error)) from None
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"The message is not valid JSON: {error}.") from None
        if not isinstance(given, dict) or given.pop("type", None) != "response.create":
            raise InvalidRequestError("A message is a JSON object of type 'response.create'.", "type")
        if given.pop("background", None):
            raise InvalidRequestError("background is not supported over a WebSocket; use HTTP.", "background")
        # A WebSocket always streams.
        for name in ("stream", "stream_options"):
            given.pop(name, None)
        return given

    def _scope(self) -> Scope:
        """Return the ASGI scope of a POST request with the path and the headers of the connection, but no caller.

        Headers that belong to the connection itself, such as `sec-websocket-key`, are left out. The body is declared as
        JSON.
        """
        scope = self._websocket.scope
        headers = [
            (name, value)
            for name, value in scope["headers"]
            if name.decode("latin-1") not in _OWN_HEADERS and not name.startswith(b"sec-websocket-")
        ]
        state = {name: value for name, value in scope.get("state", {}).items() if name != "caller"}
        return {
            **{name: scope[name] for name in _SCOPE if name in scope},
            "type": "http",
            "method": "POST",
            "scheme": "https" if scope.get("scheme") == "wss" else "http",
            "headers": [*headers, (b"content-type", b"application/json")],
            "state": state,
        }

    async def _disconnected(self) -> Message:
        """ASGI `receive` of a request after its body: waits until the client has left, and reports that."""
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, data: dict[str, Any]) -> None:
        """Send an object as a JSON text."""
        await self._websocket.send_text(json.dumps(data, ensure_ascii=False))


class _Exchange:
    """ASGI `send` that forwards the response to one request as messages of the WebSocket.

    Args:
        websocket: The connection.
        left: Set by this object if the client does not read the response.
        previous_id: The `previous_response_id` to show in the response, if it differs from that of the request;
            otherwise None.
        wants_end: Whether to keep the whole response in `ended`.
    """

    def __init__(self, websocket: WebSocket, left: asyncio.Event, previous_id: str | None, *, wants_end: bool) -> None:
        self._websocket = websocket
        self._left = left
        self._previous_id = previous_id
        self._wants_end = wants_end
        self._status = 0
        self._buffer = b""
        self.is_complete = False
        """Whether the application has sent its whole response."""
        self.failed = False
        """Whether the response is an error, or the status of the response is failed."""
        self.ended: dict[str, Any] | None = None
        """The response, if `wants_end` is set and it has ended without a failure; otherwise None."""

    async def send(self, message: Message) -> None:
        """Forward the next part of the response to the WebSocket.

        Of a stream, each complete event is sent. An error response is sent as an error event once it is complete, and
        sets `failed`.
        """
        if message["type"] == "http.response.start":
            self._status = message["status"]
            return
        self._buffer += message.get("body", b"")
        self.is_complete = not message.get("more_body", False)
        if self._status == 200:
            *frames, self._buffer = self._buffer.split(b"\n\n")
            for frame in frames:
                await self._forward(frame.decode())
        elif self.is_complete:
            self.failed = True
            error = _error_event(self._status, json.loads(self._buffer)["error"])
            await self._send(json.dumps(error, ensure_ascii=False))

    async def _forward(self, frame: str) -> None:
        """Send the event of a frame, with the right `previous_response_id`.

        Error events are dropped, because `response.failed` follows. Records a failure in `failed` and, if wanted, the
        completed response in `ended`.
        """
        name, _, data = frame.partition("\ndata: ")
        kind = name.removeprefix("event: ")
        # `response.failed` follows an error; both would end the response for a client.
        if not data or kind == "error":
            return
        is_end = kind in _ENDINGS
        self.failed = self.failed or kind == "response.failed"
        if (is_end and self._wants_end) or (kind in _SNAPSHOTS and self._previous_id is not None):
            event = json.loads(data)
            if self._previous_id is not None:
                event["response"]["previous_response_id"] = self._previous_id
                data = json.dumps(event, ensure_ascii=False)
            if is_end and self._wants_end and not self.failed:
                self.ended = event["response"]
        await self._send(data)

    async def _send(self, text: str) -> None:
        """Send a text to the client. If the client has left, drop the text and set `left`, which ends the request."""
        try:
            await self._websocket.send_text(text)
        except (WebSocketDisconnect, RuntimeError):
            # As over HTTP, the rest is dropped, and `_disconnected` ends the request.
            self._left.set()


def _error_event(status: int, error: dict[str, Any]) -> dict[str, Any]:
    """Return the `error` event for a request that has no response, with the fields of Open Responses and of OpenAI."""
    fields = {"code": error.get("code") or error["type"], "message": error["message"], "param": error.get("param")}
    return {"type": "error", "status": status, **fields, "error": {**error, **fields}}


def _size(message: str | bytes) -> int:
    """Return what a waiting message counts against the limit: its length (of text, in characters), and
    `_MESSAGE_BYTES`."""
    return len(message) + _MESSAGE_BYTES


def _items(given: str | list[Any]) -> list[Any]:
    """Return an input as items. A text becomes one user message."""
    return [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given
