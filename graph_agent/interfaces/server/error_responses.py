"""Writes a problem as the error response of the API that the request's path selects."""

from __future__ import annotations

import logging
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from graph_agent.base._internal.failure_log import log_failure
from graph_agent.interfaces.server.body_faults import describe_faults
from graph_agent.interfaces.server.http_request import ANTHROPIC_HEADER, new_request_id, path_of
from graph_agent.interfaces.server.problems import FORMS, InvalidRequestError, ProblemError, problem_of_failure
from graph_agent.interfaces.server.settings import REST_PATH, RPC_PATH

logger = logging.getLogger("graph_agent.server.problems")

_DOMAIN = "graph-agent"
"""Domain of the reasons in A2A errors; the reasons are this server's, and not the protocol's."""
_STATUSES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    507: "RESOURCE_EXHAUSTED",
}
"""HTTP status → the canonical status of AIP-193; any other is `INVALID_ARGUMENT`."""
_INVALID_REQUEST, _INTERNAL_ERROR = -32600, -32603

_HINTS = {
    "/responses": "Responses are at /v1/responses: give the client a base URL that ends in /v1.",
    "/chat/completions": "Chat completions are at /v1/chat/completions: give the client a base URL that ends in /v1.",
    "/models": "The models are at /v1/models: give the client a base URL that ends in /v1.",
    "/messages": "Messages are at /v1/messages: Anthropic's own clients want a base URL without /v1, and add it.",
    "/agui": "AG-UI is not installed with this server: pip install 'graph-agent[agui]'.",
}
"""End of an unknown path → a hint about the client setting that typically causes it."""


def a2a_refusal(path: str, problem: ProblemError, status: int) -> JSONResponse:
    """Return the response to a refused A2A request, in the format of HTTP+JSON or of JSON-RPC, which the path selects.

    Both have the kind of the problem as the reason. Over JSON-RPC, the code is that of an invalid request for a status
    below 500, else of an internal error.

    Args:
        path: Path of the request.
        problem: Why the request is refused.
        status: HTTP status of the response.
    """
    metadata = {} if problem.category is None else {"category": problem.category}
    # Clients of A2A read the reason from this object; the message is for people, and may change.
    info: dict[str, Any] = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": problem.kind.upper(),
        "domain": _DOMAIN,
        "metadata": metadata,
    }
    if path.startswith(REST_PATH):
        name = _STATUSES.get(status, "INVALID_ARGUMENT")
        error = {"code": status, "status": name, "message": problem.message, "details": [info]}
        return JSONResponse({"error": error}, status, headers=problem.headers)
    # The request may not have been read, so its id is unknown and `id` is null, as JSON-RPC prescribes.
    code = _INVALID_REQUEST if status < 500 else _INTERNAL_ERROR
    error = {"code": code, "message": problem.message, "data": [info]}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status, headers=problem.headers)


def anthropic_error(problem: ProblemError) -> dict[str, Any]:
    """Return an error in Anthropic's format, which is the body of a response or the data of an `error` event.

    The details and the category of the problem are added if it has them.
    """
    optional = {"details": problem.details, "category": problem.category}
    extra = {name: value for name, value in optional.items() if value is not None}
    return {"type": "error", "error": {"type": FORMS[problem.kind].anthropic_type, "message": problem.message, **extra}}


def anthropic_refusal(problem: ProblemError) -> JSONResponse:
    """Return the response to a refused request in Anthropic's format, with the status that Anthropic's API has for it.

    A new request id is in the body and in a header.
    """
    # Anthropic's clients report this id with an error; a run that never began has no other.
    request_id = new_request_id()
    body = {**anthropic_error(problem), "request_id": request_id}
    status = FORMS[problem.kind].anthropic_status or problem.status
    return JSONResponse(body, status, headers={**problem.headers, ANTHROPIC_HEADER: request_id})


def openai_error(problem: ProblemError) -> dict[str, Any]:
    """Return an error in OpenAI's format, which is the body of a response or the data of a stream's last event.

    The category of the problem is added if it has one.
    """
    form = FORMS[problem.kind]
    category = {} if problem.category is None else {"category": problem.category}
    error = {"message": problem.message, "type": form.openai_type, "param": problem.param, "code": form.openai_code}
    return {"error": {**error, **category}}


def openai_refusal(problem: ProblemError) -> JSONResponse:
    """Return the response to a refused request in OpenAI's format."""
    return JSONResponse(openai_error(problem), problem.status, headers=problem.headers)


def refusal(path: str, problem: ProblemError, status: int | None = None) -> Response:
    """Return the error response for a problem, in the format of the API that the path belongs to.

    The formats are Anthropic's below `/v1/messages`, OpenAI's elsewhere below `/v1/`, A2A's, and otherwise `{"error",
    "kind"}`. Each also has the `category` of a failed run.

    Args:
        path: Path of the request.
        problem: Why the request is refused.
        status: HTTP status of the response; None for the problem's own, which can differ in Anthropic's API.
    """
    if path.startswith("/v1/messages"):
        response = anthropic_refusal(problem)
    elif path.startswith("/v1/"):
        response = openai_refusal(problem)
    elif path == RPC_PATH or path.startswith(f"{RPC_PATH}/"):
        response = a2a_refusal(path, problem, status or problem.status)
    else:
        category = {} if problem.category is None else {"category": problem.category}
        body = {"error": problem.message, "kind": problem.kind, **category}
        response = JSONResponse(body, problem.status, headers=problem.headers)
    if status is not None:
        response.status_code = status
    return response


async def on_problem(request: Request, error: Exception) -> Response:
    """Exception handler of Starlette: return the response for a `ProblemError` of a route."""
    assert isinstance(error, ProblemError)
    return refusal(path_of(request.scope), error)


async def on_invalid(request: Request, error: Exception) -> Response:
    """Exception handler of FastAPI: return the response, with status 400, for a request that does not match the schema
    of the API.

    It describes at most 3 faults, and names the first faulty field.
    """
    assert isinstance(error, RequestValidationError)
    message, param = describe_faults(error.errors())
    return refusal(path_of(request.scope), InvalidRequestError(message, param))


async def on_http(request: Request, error: Exception) -> Response:
    """Exception handler of Starlette: return the response for an `HTTPException`, in the format of the API of the path.

    A 404 names the path, with a hint for paths that clients often request by mistake. A 400 becomes "no JSON", because
    FastAPI raises it for a body that it cannot parse. Any other status is kept, with the headers of the exception.
    """
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        path = request.url.path
        hint = next((text for end, text in _HINTS.items() if path.endswith(end)), "")
        problem = ProblemError("not_found", f"There is nothing at {path}. {hint}".rstrip())
        return refusal(path_of(request.scope), problem)
    # FastAPI raises it for a body that it cannot parse, and its text gives no reason.
    if error.status_code == 400:
        return refusal(path_of(request.scope), InvalidRequestError("The request's body is no JSON."))
    response = refusal(path_of(request.scope), InvalidRequestError(str(error.detail)), error.status_code)
    response.headers.update(error.headers or {})
    return response


def internal_error(path: str, error: Exception) -> Response:
    """Log an unexpected error, with a traceback only at DEBUG, and return its error response, which has no details of
    it.
    """
    log_failure(logger, path, error)
    return refusal(path, problem_of_failure(error))
