"""Refusal of requests with a lone surrogate in a string, which neither protobuf nor a response can encode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from a2a.utils.error_handlers import build_rest_error_payload
from google.protobuf.json_format import ParseError
from starlette.responses import JSONResponse, Response

from graph_agent._internal.text import find_lone_surrogate

Refusal = Callable[[Any, str], Response]
"""Builds the response to a request from its JSON and the reason."""


def refusal_of_text(request: Any, refusal: Refusal) -> Response | None:
    """Return the response to a request with a lone surrogate in its text; None for any other request.

    Args:
        request: The request's JSON; None for a body that is not JSON.
        refusal: Builds the response.
    """
    place = find_lone_surrogate(request)
    if place is None:
        return None
    return refusal(
        request,
        f"{place or 'The request'} holds a lone surrogate, which is half of a character (e.g. \\ud800). Send whole "
        "characters.",
    )


def refused_text_over_jsonrpc(request: Any, reason: str) -> Response:
    """Return the JSON-RPC error for an invalid request, with status 400."""
    id_ = request.get("id") if isinstance(request, dict) else None
    known = isinstance(id_, int | str) and find_lone_surrogate(id_) is None
    error = {"code": -32600, "message": reason}
    return JSONResponse({"jsonrpc": "2.0", "id": id_ if known else None, "error": error}, 400)


def refused_text_over_rest(request: Any, reason: str) -> Response:
    """Return the HTTP+JSON error for an invalid request."""
    return JSONResponse(build_rest_error_payload(ParseError(reason)), 400)
