"""Error responses in the format of the request's API, selected by path."""

from __future__ import annotations

import logging

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from graph_agent._internal.failure_log import log_failure
from graph_agent.server.errors.anthropic import anthropic_refusal
from graph_agent.server.errors.faults import describe_faults
from graph_agent.server.errors.openai import openai_refusal
from graph_agent.server.errors.problems import ProblemError, problem_of_failure

logger = logging.getLogger(__name__)

_HINTS = {
    "/responses": "Responses are at /v1/responses: give the client a base URL that ends in /v1.",
    "/chat/completions": "Chat completions are at /v1/chat/completions: give the client a base URL that ends in /v1.",
    "/models": "The models are at /v1/models: give the client a base URL that ends in /v1.",
    "/messages": "Messages are at /v1/messages: Anthropic's own clients want a base URL without /v1, and add it.",
}
"""End of an unknown path → the client setting that typically causes it."""


def path_of(scope: Scope) -> str:
    """Return a request's path without the mount path of the application."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if path == root or path.startswith(f"{root}/") else path


def refusal(path: str, problem: ProblemError) -> Response:
    """Return the error response for a problem, in the format of the path's API."""
    if path.startswith("/v1/messages"):
        return anthropic_refusal(problem)
    if path.startswith("/v1/"):
        return openai_refusal(problem)
    category = {} if problem.category is None else {"category": problem.category}
    body = {"error": problem.message, "kind": problem.kind, **category}
    return JSONResponse(body, problem.status, headers=problem.headers)


async def on_problem(request: Request, error: Exception) -> Response:
    """Handle a `ProblemError`."""
    assert isinstance(error, ProblemError)
    return refusal(path_of(request.scope), error)


async def on_invalid(request: Request, error: Exception) -> Response:
    """Handle a request that does not fit the API's schema."""
    assert isinstance(error, RequestValidationError)
    message, param = describe_faults(error.errors())
    return refusal(path_of(request.scope), ProblemError("invalid", message, param=param))


async def on_http(request: Request, error: Exception) -> Response:
    """Handle errors of the framework: an unknown path or method, or an unreadable body."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        problem = ProblemError("not_found", _not_found_message(request.url.path))
        return refusal(path_of(request.scope), problem)
    if error.status_code == 400:
        return refusal(path_of(request.scope), ProblemError("invalid", "The request's body is no JSON."))
    response = refusal(path_of(request.scope), ProblemError("invalid", str(error.detail)))
    response.status_code = error.status_code
    response.headers.update(error.headers or {})
    return response


def internal_error(path: str, error: Exception) -> Response:
    """Log an unexpected error, with a traceback only at DEBUG, and return its response."""
    log_failure(logger, path, error)
    return refusal(path, problem_of_failure(error))


def _not_found_message(path: str) -> str:
    """Return the error message for an unknown path."""
    hint = next((text for end, text in _HINTS.items() if path.endswith(end)), "")
    return f"There is nothing at {path}. {hint}".rstrip()
