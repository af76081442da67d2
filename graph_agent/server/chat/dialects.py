"""Error responses in the format of the request's API, selected by path."""

from __future__ import annotations

import logging

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from graph_agent._internal.failure_log import log_failure
from graph_agent.server.admission.faults import describe_faults
from graph_agent.server.admission.not_found import not_found_message
from graph_agent.server.admission.paths import path_of
from graph_agent.server.admission.problems import ProblemError, problem_of_failure
from graph_agent.server.anthropic.responses import anthropic_refusal
from graph_agent.server.openai.responses import openai_refusal

logger = logging.getLogger(__name__)


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
        problem = ProblemError("not_found", not_found_message(request.url.path))
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
