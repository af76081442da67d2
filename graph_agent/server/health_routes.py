"""Routes for liveness, readiness and metrics."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from graph_agent.server.monitoring.readiness import OK
from graph_agent.server.parameters import Services, services
from graph_agent.server.response_models import ControlError, Health, Readiness

_ERROR: dict[str, Any] = {"model": ControlError}
_FOREIGN: dict[str, Any] = {**_ERROR, "description": "Sent by a page of another origin to a server without keys"}

router = APIRouter(tags=["Health"])
metrics_router = APIRouter(tags=["Health"])


@router.get("/health", responses={403: _FOREIGN})
async def health() -> Health:
    """Report that the process is alive."""
    return Health(status="ok")


@router.get(
    "/ready",
    response_model=Readiness,
    responses={403: _FOREIGN, 503: {"model": Readiness, "description": "Requests cannot be answered"}},
)
async def ready(request: Request) -> Response:
    """Report whether requests can be answered: checks the model, the MCP servers and the database, 5 seconds each.

    A model behind an OpenAI-compatible endpoint is checked by listing its models, at most every 10 seconds; this uses
    no tokens. A model that failed a request within the last minute is not ready.
    """
    server = getattr(request.app.state, "graph_agent", None)
    if not isinstance(server, Services):
        return _readiness({"server": "stopping"})
    return _readiness(await server.readiness.checks())


@metrics_router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        401: {**_ERROR, "description": "Missing or unknown API key"},
        403: _FOREIGN,
        503: {**_ERROR, "description": "The server is stopping"},
    },
)
async def metrics(server: Annotated[Services, Depends(services)]) -> Response:
    """Return the metrics in Prometheus's text format."""
    return Response(server.chat.runs.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})


def _readiness(checks: dict[str, str]) -> JSONResponse:
    is_ready = all(state == OK for state in checks.values())
    return JSONResponse({"ready": is_ready, "checks": checks}, 200 if is_ready else 503)
