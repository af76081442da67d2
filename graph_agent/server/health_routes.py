"""Implements the routes for liveness, readiness and metrics."""

from __future__ import annotations

import html
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import HTMLResponse, JSONResponse, Response

from graph_agent._internal.text import html_table
from graph_agent.server.monitoring import OK
from graph_agent.server.parameters import Server, Services
from graph_agent.server.response_models import ControlError, Health, Readiness

_ERROR: dict[str, Any] = {"model": ControlError}
_FOREIGN: dict[str, Any] = {**_ERROR, "description": "Sent by a page of another origin to a server without keys"}

router = APIRouter(tags=["Health"])
metrics_router = APIRouter(tags=["Health"])
pages_router = APIRouter(include_in_schema=False)
_LINKS = {
    "docs": "/docs",
    "openapi": "/openapi.json",
    "health": "/health",
    "ready": "/ready",
    "chat completions": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "agent card": "/.well-known/agent-card.json",
}
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head><body>
<h1>{title}</h1><p>{description}</p><p>The whole description is in <a href="{root}/openapi.json">openapi.json</a>.</p>
{operations}</body></html>"""


@pages_router.get("/")
async def root(request: Request) -> Response:
    """Return the page of the sessions; to a client that accepts only JSON, where the documentation and APIs are."""
    base = request.scope.get("root_path", "")
    accepted = request.headers.get("accept", "*/*")
    if "json" in accepted and "html" not in accepted:
        links = {name: f"{base}{path}" for name, path in _LINKS.items()}
        return JSONResponse({"name": request.app.title, "links": links}, headers={"vary": "accept"})
    # Imported with the first request for it.
    from graph_agent.web.page import page

    shown = page({"name": request.app.title, "description": request.app.description})
    headers = {
        "content-security-policy": shown.policy,
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
        "vary": "accept",
    }
    return HTMLResponse(shown.html, headers=headers)


@pages_router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """Return a page that lists the operations; it has no script and loads nothing from elsewhere."""
    schema = request.app.openapi()
    rows = [
        (f"{method.upper()} {path}", operation.get("description") or operation.get("summary", ""))
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
    ]
    info = {name: html.escape(str(schema["info"].get(name, ""))) for name in ("title", "description")}
    text = html_table(f"Operations of version {schema['info']['version']}", rows)
    return HTMLResponse(_PAGE.format(**info, root=html.escape(request.scope.get("root_path", "")), operations=text))


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
async def metrics(server: Server) -> Response:
    """Return the metrics in Prometheus's text format."""
    return Response(server.chat.runs.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})


def _readiness(checks: dict[str, str]) -> JSONResponse:
    is_ready = all(state == OK for state in checks.values())
    return JSONResponse({"ready": is_ready, "checks": checks}, 200 if is_ready else 503)
