"""Writes the error responses of A2A, over JSON-RPC and over HTTP+JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from a2a.utils.error_handlers import build_error_details, build_rest_error_payload
from a2a.utils.errors import JSON_RPC_ERROR_CODE_MAP, A2AError, InvalidRequestError, JSONParseError
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

from graph_agent.base._internal.failure_log import leaves
from graph_agent.base._internal.text import find_lone_surrogate

Refusal = Callable[[Any, A2AError], Response]
"""Builds the response to a refused request, from the request as JSON (None if it is unknown) and the error."""


def refused_over_jsonrpc(request: Any, error: A2AError) -> Response:
    """Return the JSON-RPC error response to a refused request, with the code, the message and the details of the error.

    It has the request's id if that is a valid one, else null. The HTTP status is 400 for an invalid request, otherwise
    200.
    """
    id_ = request.get("id") if isinstance(request, dict) else None
    known = isinstance(id_, int | str) and find_lone_surrogate(id_) is None
    code = JSON_RPC_ERROR_CODE_MAP[type(error)]
    shown = {"code": code, "message": error.message, "data": build_error_details(error)}
    status = 400 if isinstance(error, InvalidRequestError) else 200
    return JSONResponse({"jsonrpc": "2.0", "id": id_ if known else None, "error": shown}, status)


def refused_over_rest(request: Any, error: A2AError) -> Response:
    """Return the HTTP+JSON error response to a refused request. The request itself is not used.

    JSON that cannot be parsed is reported as an invalid request.
    """
    # The SDK has no HTTP status for invalid JSON.
    known = InvalidRequestError(error.message) if isinstance(error, JSONParseError) else error
    payload = build_rest_error_payload(known)
    return JSONResponse(payload, payload["error"]["code"])


class RefusedStreams:
    """ASGI middleware that answers with an error response if a stream raises an `A2AError` before its first event.

    The SDK's streams of A2A 0.3 over REST send status 200 first, so that such an error would only break the connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; an `A2AError` before the first part of the body is answered with its HTTP+JSON response.

        A later exception, and any other exception than an `A2AError`, is raised.
        """
        start: ASGIMessage | None = None
        has_begun = False

        async def send_with_body(message: ASGIMessage) -> None:
            """Send a message. The start of the response is held back until the first part of its body, so that an error
            before that can still be answered.
            """
            nonlocal start, has_begun
            if message["type"] == "http.response.start":
                start = message
                return
            if start is not None and not has_begun:
                has_begun = True
                await send(start)
            await send(message)

        try:
            await self._app(scope, receive, send_with_body)
        except Exception as error:
            refusal = next((each for each in leaves(error) if isinstance(each, A2AError)), None)
            if has_begun or refusal is None:
                raise
            await refused_over_rest(None, refusal)(scope, receive, send)
