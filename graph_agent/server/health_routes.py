"""Whether the server lives, whether it can answer, and what it has counted."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from graph_agent.server.host import Host
from graph_agent.server.parameters import Services, services
from graph_agent.server.replies import ControlError, Health, Readiness

_MODEL_DOWN_S = 60
"""Seconds that a failure of the model counts; then a request must find out."""
_ERROR: dict[str, Any] = {"model": ControlError}

router = APIRouter(tags=["Health"])
metrics_router = APIRouter(tags=["Health"])


@router.get("/health")
async def health() -> Health:
    """Say that the process is alive."""
    return Health(status="ok")


@router.get("/ready", responses={503: {"model": Readiness, "description": "Requests cannot be answered"}})
async def ready(request: Request) -> Response:
    """Say whether requests can be answered: the model, the MCP servers and the database.

    The model is not asked, as that costs money: what counts is whether its newest answer within a minute was an error.
    """
    here = getattr(request.app.state, "graph_agent", None)
    if not isinstance(here, Services):
        return _readiness({"server": "stopping"})
    host = here.chat.runs.host
    checks = {"server": "stopping" if here.chat.runs.draining else "ok", "model": _model(here)}
    checks["database"] = await _database(host)
    checks.update({f"mcp:{name}": state for name, state in (await host.mcp_states()).items()})
    return _readiness(checks)


@metrics_router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, 401: _ERROR, 503: _ERROR},
)
async def metrics(here: Annotated[Services, Depends(services)]) -> Response:
    """Give what was counted, in Prometheus's text format."""
    return Response(here.chat.runs.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})


def _readiness(checks: dict[str, str]) -> JSONResponse:
    is_ready = all(state == "ok" for state in checks.values())
    return JSONResponse({"ready": is_ready, "checks": checks}, 200 if is_ready else 503)


def _model(here: Services) -> str:
    failed = here.chat.runs.metrics.last_model_error
    return "ok" if failed is None or time.time() - failed[1] > _MODEL_DOWN_S else failed[0]


async def _database(host: Host) -> str:
    try:
        await host.saver.aget_tuple({"configurable": {"thread_id": "/ready"}})
    except Exception:  # noqa: BLE001 - a database may fail in any way; that it does is what is asked
        return "failed"
    return "ok"
