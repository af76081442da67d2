"""Limits the size, arrival time and JSON content of request bodies."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.types import Message, Receive, Scope

from graph_agent.base._internal.json_bounds import JsonBounds, JsonBoundsError, JsonMeter, TooManyValuesError
from graph_agent.interfaces.server.problems import InvalidRequestError, Kind, ProblemError

COLLECT_BYTES = 64_000_000
"""Bytes of request bodies after which garbage is collected, counted when the requests are answered.

The collector counts objects, not bytes, and some of the cycles that requests leave hold a whole large body.
"""

SMALL_BYTES = 16_384
"""Maximum bytes of a body that is processed on the event loop. Handing a small body to a thread would take longer."""
_LIMITER = CapacityLimiter(1)
"""Permits one thread for the bodies of all requests; several would only compete for the interpreter."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(eq=False)
class BodyLimits:
    """Reads the whole body of each request, within limits.

    A body whose `content-length` is too large is not read at all; a chunked body is counted as it arrives.

    Args:
        max_bytes: Maximum bytes of a body.
        timeout_s: Maximum seconds in which a body must arrive.
        json: Limits of the number and depth of JSON values. They are counted as the body arrives, because parsing and
            validating millions of values would block every other request.
    """

    max_bytes: int
    timeout_s: float
    json: JsonBounds
    _answered: int = 0

    async def read(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the whole body of a request; None if the client has disconnected.

        Raises `ProblemError`: `too_large` for a `content-length` above the limit (before anything is read), or for more
        bytes or JSON values than allowed; `invalid` for JSON that is nested too deeply, or a `content-encoding` other
        than `identity`; `timeout` for a body that does not arrive in `timeout_s`. A body that is not JSON is returned
        unchanged.
        """
        headers = dict(scope["headers"])
        announced = headers.get(b"content-length", b"")
        if announced.isdigit() and int(announced) > self.max_bytes:
            raise ProblemError("too_large", str(BodyTooLargeError(self.max_bytes)))
        if (encoding := headers.get(b"content-encoding", b"identity").strip().lower()) not in (b"identity", b""):
            raise InvalidRequestError(
                f"The request's body is encoded as {encoding.decode('latin-1')[:40]!r}, which this server does not "
                "decode. Send it without a content-encoding."
            )
        try:
            async with asyncio.timeout(self.timeout_s):
                return await read_body(receive, self.json, self.max_bytes)
        except TimeoutError:
            message = f"The request's body did not arrive within {self.timeout_s:g} seconds."
            raise ProblemError("timeout", message) from None
        except JsonBoundsError as error:
            kind: Kind = "too_large" if isinstance(error, TooManyValuesError | BodyTooLargeError) else "invalid"
            raise ProblemError(kind, str(error)) from None

    def count_answered(self, size: int) -> None:
        """Count the bytes of a body whose request was answered, and collect garbage after `COLLECT_BYTES`."""
        self._answered += size
        if self._answered >= COLLECT_BYTES:
            self._answered = 0
            gc.collect()


class BodyTooLargeError(JsonBoundsError):
    """A body has more bytes than allowed."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"The request's body is larger than {max_bytes} bytes.")


async def read_body(receive: Receive, bounds: JsonBounds, max_bytes: int | None = None) -> bytes | None:
    """Return the whole body of a request; None if the client disconnects before its end.

    Args:
        receive: The ASGI `receive` of the request.
        bounds: Limits of the number and depth of JSON values, counted as the body arrives.
        max_bytes: Maximum bytes; None for no limit.

    Raises:
        BodyTooLargeError: As soon as more than `max_bytes` have arrived.
        JsonBoundsError: The JSON exceeds `bounds`. Raised once the whole body has arrived; the rest of it is not kept.
    """
    meter = JsonMeter(bounds)
    chunks: list[bytes] = []
    size = 0
    refused: JsonBoundsError | None = None
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        chunk = message.get("body", b"")
        size += len(chunk)
        if max_bytes is not None and size > max_bytes:
            raise BodyTooLargeError(max_bytes)
        if refused is None:
            try:
                meter.feed(chunk)
                chunks.append(chunk)
            except JsonBoundsError as error:
                refused = error
                # The rest is read and dropped: a client that is still sending would not read the response.
                chunks.clear()
        if not message.get("more_body", False):
            if refused is not None:
                raise refused
            return b"".join(chunks)


class ReplayedBody:
    """ASGI `receive` that returns a body that was read before as one message, and then the client's further
    messages.
    """

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        """Return the body at the first call, and the client's next message at each later one."""
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


async def run_in_thread(request: Request, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that processes a request's body, and return its result.

    It is called directly for a body of at most 16 KiB, and otherwise in a thread, one call at a time in this process.
    The function must not use the event loop. Its exceptions are raised.
    """
    # The body was read already by `BodyLimits`.
    if len(await request.body()) <= SMALL_BYTES:
        return function(*args, **kwargs)
    return await anyio.to_thread.run_sync(lambda: function(*args, **kwargs), limiter=_LIMITER)


class BodyRoute(APIRoute):
    """A FastAPI route that parses and validates a large body in a thread, instead of on the event loop."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        """Return the request handler of the route: FastAPI's own if the route has no body, else one that validates the
        body itself.

        FastAPI calls this method once for each route.
        """
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        annotation: Any = self.body_field.field_info.annotation
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)

        async def handle_validated(request: Request) -> Response:
            """Handle a request, whose body is validated outside FastAPI.

            Raises `RequestValidationError` if the body or another parameter is invalid, with the faults of the other
            parameters before those of the body.
            """
            validated = _ValidatedRequest(request.scope, request.receive)
            # FastAPI validates on the event loop, where a large body would block every request.
            validated.adapter = adapter
            try:
                response: Response = await handle(validated)
            except RequestValidationError as error:
                if not validated.faults:
                    raise
                others = [fault for fault in error.errors() if fault["loc"][0] != "body"]
                raise RequestValidationError([*others, *validated.faults]) from None
            return response

        return handle_validated


class _ValidatedRequest(Request):
    """A request whose `json` returns a validated model, which FastAPI's own validation accepts unchanged."""

    adapter: TypeAdapter[Any]
    """Validates a body as the model of the route."""
    faults: tuple[dict[str, Any], ...] = ()
    """Pydantic's errors of the body, with locations that begin with `body`; empty if it is valid."""

    async def json(self) -> Any:
        """Return the body as the model of the route; a large body is validated in a thread.

        If the body does not fit the model, set `faults` and return a string, which no model accepts, so that FastAPI
        raises an error. Raises `JSONDecodeError` if the body is not JSON in UTF-8.
        """
        body = await self.body()
        try:
            return await run_in_thread(self, _validate, body, self.adapter)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
            self.faults = tuple({**fault, "loc": ("body", *fault["loc"])} for fault in faults)
            return "faulty"


def _validate(body: bytes, adapter: TypeAdapter[Any]) -> Any:
    """Parse a body as JSON in UTF-8, with or without a byte order mark, and validate it.

    Raises `JSONDecodeError` for other text or too deep nesting, and `ValidationError` if it does not fit the model.
    """
    try:
        # Some clients send a byte order mark.
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise json.JSONDecodeError("It is not UTF-8", "", 0) from None
    try:
        value = json.loads(text)
    except RecursionError:
        raise json.JSONDecodeError("It is nested too deeply", "", 0) from None
    return adapter.validate_python(value)
