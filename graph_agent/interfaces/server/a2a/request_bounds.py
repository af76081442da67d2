"""Refuses requests of A2A above the size limits, and values that the SDK would answer with an internal error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from a2a.utils.errors import InvalidParamsError, InvalidRequestError, JSONParseError
from starlette.types import ASGIApp, Receive, Scope, Send

from graph_agent.base._internal.json_bounds import JsonBounds, JsonBoundsError
from graph_agent.base._internal.text import find_lone_surrogate
from graph_agent.interfaces.server.a2a.error_responses import Refusal
from graph_agent.interfaces.server.a2a.listing import MOST_INT32, TASK_STATES, check_query, unknown_state
from graph_agent.interfaces.server.admission.body import ReplayedBody, read_body
from graph_agent.interfaces.server.sse import with_json_lines

_FILE_BYTES = frozenset({"raw", "bytes", "fileWithBytes", "file_with_bytes"})
"""Keys whose value is the base64 of a file, in all protocol versions."""


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """Size limits of one A2A request.

    They are low because the SDK blocks the event loop for tens of microseconds per value.
    """

    values: int = 5_000
    """Maximum JSON values: objects, arrays, strings, numbers, `true`, `false` and `null`. Keys do not count."""
    depth: int = 100
    """Maximum nesting levels of JSON."""
    parts: int = 200
    """Maximum parts of a message."""
    characters: int = 1_000_000
    """Maximum characters of all strings and keys together.

    The base64 of files does not count, because the SDK does not scan it.
    """


class BoundedRequests:
    """ASGI middleware that passes a request to the SDK only if it is valid UTF-8 and within the size limits.

    It also refuses values that the SDK would answer with an internal error or ignore, such as an unknown state in a
    filter.

    Args:
        app: The SDK's application.
        bounds: The size limits.
        refusal: Builds the response to a refused request.
    """

    def __init__(self, app: ASGIApp, bounds: RequestBounds, refusal: Refusal) -> None:
        self._app = app
        self._bounds = bounds
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the SDK, or send the response that refuses it; nothing if the client has disconnected.

        A POST is refused for too many JSON values, levels, parts or characters, and for text or parameters that the SDK
        would answer with an internal error. Of any other request, only the query is checked. In streamed responses, the
        line separators of Unicode are escaped.
        """
        send = with_json_lines(send)
        if scope["method"] != "POST":
            try:
                check_query(scope["query_string"])
            except InvalidParamsError as error:
                await self._refusal(None, error)(scope, receive, send)
            else:
                await self._app(scope, receive, send)
            return
        try:
            # The limits of an A2A request are lower than those of other APIs, because the SDK is slower.
            body = await read_body(receive, JsonBounds(self._bounds.values, self._bounds.depth))
            if body is None:
                return  # the client has disconnected
            request = _decoded(body)
            self._check_parts(request)
            self._check_characters(request)
        except JsonBoundsError as error:
            await self._refusal(None, JSONParseError(str(error)))(scope, receive, send)
            return
        if (refused := _refused_text(request) or _refused_params(request)) is not None:
            await self._refusal(request, refused)(scope, receive, send)
            return
        # The SDK parses a large body again; yield to other tasks before that.
        await asyncio.sleep(0)
        await self._app(scope, ReplayedBody(body, receive), send)

    def _check_parts(self, request: Any) -> None:
        """Raise `JsonBoundsError` if the message of a request, in whichever protocol version, has more parts than
        allowed.

        Does nothing for a request without a message.
        """
        params = request.get("params", request) if isinstance(request, dict) else None
        message = params.get("message") if isinstance(params, dict) else None
        if not isinstance(message, dict):
            return
        # Version 0.3 over HTTP+JSON calls the parts `content`.
        lists = [parts for name in ("parts", "content") if isinstance(parts := message.get(name), list)]
        amount = max(map(len, lists), default=0)
        if amount > self._bounds.parts:
            raise JsonBoundsError(
                f"The message has {amount} parts; it may have {self._bounds.parts}. Join texts, or send more messages."
            )

    def _check_characters(self, request: Any) -> None:
        """Raise `JsonBoundsError` if the strings and keys of a request, the base64 of files aside, have more characters
        than allowed.
        """
        amount = sum(map(len, _strings(request)))
        if amount > self._bounds.characters:
            raise JsonBoundsError(
                f"The request has {amount} characters of text; it may have {self._bounds.characters}, the bytes of "
                "files aside. Send a shorter text, or the text as a file."
            )


def _strings(request: Any) -> Iterator[str]:
    """Yield all strings and keys of a JSON value, except the base64 of files."""
    # Without recursion, as a client's value may be nested deeply.
    pending = [request]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, dict):
            yield from value
            pending.extend(item for key, item in value.items() if not (key in _FILE_BYTES and isinstance(item, str)))


def _decoded(body: bytes) -> Any:
    """Parse a body as JSON; None if it is not valid JSON, which the SDK refuses later.

    Raises `JsonBoundsError` if it is not UTF-8.
    """
    try:
        return json.loads(body.decode())
    except UnicodeDecodeError:
        raise JsonBoundsError("The request is not JSON in UTF-8.") from None
    except ValueError:
        return None


def _refused_text(request: Any) -> InvalidRequestError | None:
    """Return the error if the text of a request contains a lone surrogate; otherwise None."""
    place = find_lone_surrogate(request)
    if place is None:
        return None
    return InvalidRequestError(
        f"{place or 'The request'} holds a lone surrogate, which is half of a character (e.g. \\ud800). Send whole "
        "characters."
    )


def _refused_params(request: Any) -> InvalidParamsError | None:
    """Return the error for a `historyLength` that is negative or above 2³¹ - 1, or for an unknown state of tasks to
    list; otherwise None.

    The SDK would answer both with an internal error.
    """
    params = request.get("params", request) if isinstance(request, dict) else None
    if not isinstance(params, dict):
        return None
    for holder in (params, params.get("configuration")):
        given = holder.get("historyLength") if isinstance(holder, dict) else None
        if isinstance(given, int) and not 0 <= given <= MOST_INT32:
            return InvalidParamsError(message=f"historyLength={given}: give a whole number from 0.")
    status = params.get("status") if request.get("method") == "ListTasks" else None
    return unknown_state(status) if isinstance(status, str) and status not in TASK_STATES else None
