"""Errors in OpenAI's format."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from graph_agent.server.errors.problems import Kind, ProblemError

_TYPES: dict[Kind, tuple[str, str | None]] = {
    "invalid": ("invalid_request_error", None),
    "key": ("authentication_error", "invalid_api_key"),
    "origin": ("invalid_request_error", "origin_not_allowed"),
    "model": ("invalid_request_error", "model_not_found"),
    "not_found": ("invalid_request_error", "not_found"),
    "previous_response": ("invalid_request_error", "previous_response_not_found"),
    "conflict": ("invalid_request_error", "conflict"),
    "key_reused": ("invalid_request_error", "idempotency_key_reused"),
    "too_large": ("invalid_request_error", "request_too_large"),
    "media_type": ("invalid_request_error", "unsupported_media_type"),
    "timeout": ("invalid_request_error", "request_timeout"),
    "busy": ("rate_limit_error", "rate_limit_exceeded"),
    "context": ("invalid_request_error", "context_length_exceeded"),
    "filtered": ("invalid_request_error", "content_filter"),
    "upstream": ("server_error", "model_failed"),
    "stopping": ("server_error", "server_stopping"),
    "taken_over": ("server_error", "session_taken_over"),
    "storage": ("server_error", "storage_full"),
    "locked": ("server_error", "database_locked"),
    "newer": ("server_error", "newer_session"),
    "database": ("server_error", "database_unavailable"),
    "internal": ("server_error", "internal_error"),
}


def openai_error(problem: ProblemError) -> dict[str, Any]:
    """Return an error's body."""
    type_, code = _TYPES[problem.kind]
    category = {} if problem.category is None else {"category": problem.category}
    return {"error": {"message": problem.message, "type": type_, "param": problem.param, "code": code, **category}}


def openai_refusal(problem: ProblemError) -> JSONResponse:
    """Return the response to a refused request."""
    return JSONResponse(openai_error(problem), problem.status, headers=problem.headers)
