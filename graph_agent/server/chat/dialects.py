"""Which API's words a refusal is in: by the path of the request."""

from __future__ import annotations

import logging

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from graph_agent._internal.failure_log import log_failure
from graph_agent.server.admission.faults import told
from graph_agent.server.admission.not_found import nothing_at
from graph_agent.server.admission.paths import path_of
from graph_agent.server.admission.problems import ProblemError, problem_of_failure
from graph_agent.server.anthropic.responses import anthropic_refusal
from graph_agent.server.openai.responses import openai_refusal

logger = logging.getLogger(__name__)


def refusal(path: str, problem: ProblemError) -> Response:
    """The response to a request that is turned away, as the API of its path has it."""
    if path.startswith("/v1/messages"):
        return anthropic_refusal(problem)
    if path.startswith("/v1/"):
        return openai_refusal(problem)
    category = {} if problem.category is None else {"category": problem.category}
    body = {"error": problem.message, "kind": problem.kind, **category}
    return JSONResponse(body, problem.status, headers=problem.headers)


async def on_problem(request: Request, error: Exception) -> Response:
    """Turns away what our own code refuses."""
    assert isinstance(error, ProblemError)
    return refusal(path_of(request.scope), error)


async def on_invalid(request: Request, error: Exception) -> Response:
    """Turns away what does not fit the API's schema."""
    assert isinstance(error, RequestValidationError)
    message, param = told(error.errors())
    return refusal(path_of(request.scope), ProblemError("invalid", message, param=param))


async def on_http(request: Request, error: Exception) -> Response:
    """Turns away what the framework refuses: an unknown path, a method that is not there, an unreadable body."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        problem = ProblemError("not_found", nothing_at(request.url.path))
        return refusal(path_of(request.scope), problem)
    if error.status_code == 400:
        return refusal(path_of(request.scope), ProblemError("invalid", "The request's body is no JSON."))
    response = refusal(path_of(request.scope), ProblemError("invalid", str(error.detail)))
    response.status_code = error.status_code
    response.headers.update(error.headers or {})
    return response


def internal(path: str, error: Exception) -> Response:
    """The response to a request that we failed at. The log has one line, and a trace only where it is at DEBUG."""
    log_failure(logger, path, error)
    return refusal(path, problem_of_failure(error))
