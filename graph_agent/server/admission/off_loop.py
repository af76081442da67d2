"""Reading large requests beside the event loop, which goes on to serve the others.

Reading a body is Python code for the most part, so that its thread and the loop's take turns. One large request is read
at a time: each further thread would be one more that the loop's has to wait for.
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

_SMALL = 16_384
"""Bytes of a body that is read faster than a thread is reached."""
_ONE = CapacityLimiter(1)

P = ParamSpec("P")
T = TypeVar("T")


async def off_loop(request: Request, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that reads a request's body, in a thread where the body is large.

    Args:
        request: The request.
        function: What reads it; it must not touch the event loop.
        args: Its arguments.
        kwargs: Its arguments.
    """
    if len(await request.body()) <= _SMALL:
        return function(*args, **kwargs)
    return await anyio.to_thread.run_sync(lambda: function(*args, **kwargs), limiter=_ONE)


class BodyRoute(APIRoute):
    """A route whose body, a pydantic model, is parsed and checked off the loop where it is large."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        """As FastAPI calls it."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        annotation: Any = self.body_field.field_info.annotation
        checked: TypeAdapter[Any] = TypeAdapter(annotation)

        async def handle_read(request: Request) -> Response:
            reading = _Reading(request.scope, request.receive)
            reading.checked = checked
            try:
                response: Response = await handle(reading)
            except RequestValidationError as error:
                if not reading.faults:
                    raise
                others = [fault for fault in error.errors() if fault["loc"][0] != "body"]
                raise RequestValidationError([*others, *reading.faults]) from None
            return response

        return handle_read


class _Reading(Request):
    """A request whose JSON is a checked model: FastAPI's own check passes an instance on as it is."""

    checked: TypeAdapter[Any]
    faults: tuple[dict[str, Any], ...] = ()

    async def json(self) -> Any:
        """The body as the route's model; a string, which no model is, where `faults` are found.

        Raises:
            JSONDecodeError: When it is no JSON in UTF-8.
        """
        body = await self.body()
        try:
            return await off_loop(self, _read, body, self.checked)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
            self.faults = tuple({**fault, "loc": ("body", *fault["loc"])} for fault in faults)
            return "faulty"


def _read(body: bytes, checked: TypeAdapter[Any]) -> Any:
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise json.JSONDecodeError("It is not UTF-8", "", 0) from None
    try:
        value = json.loads(text)
    except RecursionError:
        raise json.JSONDecodeError("It is nested too deeply", "", 0) from None
    return checked.validate_python(value)
