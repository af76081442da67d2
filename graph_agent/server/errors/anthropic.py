"""Errors in Anthropic's format."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from graph_agent.server.errors.problems import Kind, ProblemError
from graph_agent.server.request_ids import ANTHROPIC_HEADER, new_request_id

_TYPES: dict[Kind, tuple[str, int]] = {
    "invalid": ("invalid_request_error", 400),
    "key": ("authentication_error", 401),
    "origin": ("permission_error", 403),
    "model": ("not_found_error", 404),
    "not_found": ("not_found_error", 404),
    "previous_response": ("invalid_request_error", 400),
    "conflict": ("invalid_request_error", 409),
    "key_reused": ("invalid_request_error", 422),
    "too_large": ("request_too_large", 413),
    "media_type": ("invalid_request_error", 415),
    "timeout": ("timeout_error", 408),
    "busy": ("rate_limit_error", 429),
    "context": ("invalid_request_error", 400),
    "filtered": ("invalid_request_error", 400),
    "upstream": ("api_error", 502),
    "stopping": ("overloaded_error", 529),
    "taken_over": ("api_error", 503),
    "storage": ("api_error", 507),
    "locked": ("api_error", 503),
    "newer": ("api_error", 503),
    "database": ("api_error", 503),
    "internal": ("api_error", 500),
}


def anthropic_error(problem: ProblemError) -> dict[str, Any]:
    """Return an error's body, which is also the data of an `error` event."""
    optional = {"details": problem.details, "category": problem.category}
    extra = {name: value for name, value in optional.items() if value is not None}
    return {"type": "error", "error": {"type": _TYPES[problem.kind][0], "message": problem.message, **extra}}


def anthropic_refusal(problem: ProblemError) -> JSONResponse:
    """Return the response to a refused request."""
    request_id = new_request_id()
    body = {**anthropic_error(problem), "request_id": request_id}
    return JSONResponse(body, _TYPES[problem.kind][1], headers={**problem.headers, ANTHROPIC_HEADER: request_id})
