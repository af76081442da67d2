"""Parsing and validation of large request bodies in a thread, so that the event loop can serve other requests.

The work is mostly Python code, so that its thread and the event loop's compete for the GIL. One large request is
processed at a time, because each further thread would delay the event loop more.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError

SMALL_BYTES = 16_384
"""Bytes up to which a body is processed on the event loop, because a thread's overhead would take longer."""
_LIMITER = CapacityLimiter(1)

P = ParamSpec("P")
T = TypeVar("T")


async def off_loop(request: Request, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that processes a request's body, in a thread if the body is large.

    Args:
        request: The request.
        function: The function; it must not use the event loop.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
    """
    if len(await request.body()) <= SMALL_BYTES:
        return function(*args, **kwargs)
    return await anyio.to_thread.run_sync(lambda: function(*args, **kwargs), limiter=_LIMITER)


class BodyRoute(APIRoute):
    """A route whose body, a pydantic model, is parsed and validated in a thread if it is large."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        """Return the handler; called by FastAPI."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        annotation: Any = self.body_field.field_info.annotation
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)

        async def handle_validated(request: Request) -> Response:
            validated = _ValidatedRequest(request.scope, request.receive)
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
    """A request whose JSON is a validated model; FastAPI's own validation accepts an instance unchanged."""

    adapter: TypeAdapter[Any]
    faults: tuple[dict[str, Any], ...] = ()

    async def json(self) -> Any:
        """Return the body as the route's model, or set `faults` and return a string, which no model accepts.

        Raises:
            JSONDecodeError: If the body is not JSON in UTF-8.
        """
        body = await self.body()
        try:
            return await off_loop(self, _validate, body, self.adapter)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
            self.faults = tuple({**fault, "loc": ("body", *fault["loc"])} for fault in faults)
            return "faulty"


def _validate(body: bytes, adapter: TypeAdapter[Any]) -> Any:
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise json.JSONDecodeError("It is not UTF-8", "", 0) from None
    try:
        value = json.loads(text)
    except RecursionError:
        raise json.JSONDecodeError("It is nested too deeply", "", 0) from None
    return adapter.validate_python(value)
