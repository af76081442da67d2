"""The server's FastAPI application, standalone or mounted in `langgraph dev`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi

from graph_agent._internal.signals import drain_on_sigterm
from graph_agent.server import health_routes
from graph_agent.server.a2a.mount import CARD_PATH, PATHS, a2a_routes
from graph_agent.server.admission.gate import OPEN, guard
from graph_agent.server.admission.shared_limits import limits_of
from graph_agent.server.anthropic import routes as anthropic_routes
from graph_agent.server.chat.active_runs import Runs
from graph_agent.server.chat.handler import Chat
from graph_agent.server.errors.responses import on_invalid
from graph_agent.server.hosting.host import open_host
from graph_agent.server.hosting.sources import AgentSource
from graph_agent.server.monitoring.metrics import Metrics
from graph_agent.server.monitoring.readiness import Readiness
from graph_agent.server.openai import routes as openai_routes
from graph_agent.server.parameters import Services
from graph_agent.server.responses import conversation_routes
from graph_agent.server.responses import routes as responses_routes
from graph_agent.server.responses.background import Background
from graph_agent.server.responses.records import deleting_expired
from graph_agent.server.sessions import routes as control_routes
from graph_agent.server.settings import ServerSettings
from graph_agent.server.shared_folder import is_to_stop_at_once

GUARDED = (
    "/v1/*",
    "/memory/*",
    "/sessions",
    "/sessions/*",
    *PATHS,
    CARD_PATH,
    "/health",
    "/ready",
    "/metrics",
    "/openapi.json",
    "/docs",
)
"""Paths of this application; a trailing `/*` includes all paths below."""


def create_app(
    source: AgentSource,
    *,
    settings: ServerSettings | None = None,
    db: str | None = None,
    mounted: bool = False,
    handle_signals: bool = False,
    shared: Path | None = None,
    a2a_only: bool = False,
) -> FastAPI:
    """Create the application of one agent; the agent is opened when the application starts.

    Args:
        source: The agent.
        settings: Keys, limits and times; None for the defaults.
        db: A database URL that replaces the agent's own, e.g. `sqlite:///my.db` or `memory:`.
        mounted: Whether the application shares the server of `langgraph dev`, which has its own OpenAPI document and
            metrics.
        handle_signals: Whether SIGTERM lets runs stop at their next step boundary, and a second one stops them at once;
            with `shared`, the second one counts at the `Supervisor` that started this process.
        shared: The folder of all worker processes, for common limits and metrics; None for a single process.
        a2a_only: Whether to serve only A2A: the agent card, JSON-RPC and HTTP+JSON.
    """
    settings = settings or ServerSettings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        limits, streams, tasks = limits_of(settings, shared)
        async with (
            open_host(source, settings, db) as host,
            aclosing(Runs(host, metrics := Metrics(frozenset(host.tool_names), shared))) as runs,
            aclosing(Background(runs)) as background,
            deleting_expired(host),
        ):
            app.state.background_responses = background
            app.state.graph_agent = Services(Chat(runs, limits), streams, Readiness(host, metrics, runs))
            async with a2a_routes(runs, limits, tasks, db or source.db) as routes:
                app.router.routes[:0] = routes
                with drain_on_sigterm(
                    runs,
                    settings.drain_s,
                    enabled=handle_signals,
                    is_second=lambda: shared is None or is_to_stop_at_once(shared),
                ):
                    try:
                        yield
                    finally:
                        app.state.graph_agent = app.state.background_responses = None
                        app.router.routes[:] = [route for route in app.router.routes if route not in routes]

    app = FastAPI(
        title=source.name,
        description=source.description,
        lifespan=lifespan,
        openapi_url=None if mounted or a2a_only else "/openapi.json",
        docs_url=None if mounted or a2a_only else "/docs",
        redoc_url=None,
    )
    if not a2a_only:
        for module in (
            openai_routes,
            responses_routes,
            conversation_routes,
            anthropic_routes,
            control_routes,
            health_routes,
        ):
            app.include_router(module.router)
        if not mounted:
            app.include_router(health_routes.metrics_router)
    app.add_exception_handler(RequestValidationError, on_invalid)
    guarded = tuple(path for path in GUARDED if not mounted or path not in ("/metrics", "/openapi.json", "/docs"))
    guard(app, settings, guarded)
    app.openapi = _openapi(app, needs_key=bool(settings.keys))  # type: ignore[method-assign]  # FastAPI's way to customize OpenAPI
    return app


def _openapi(app: FastAPI, *, needs_key: bool) -> Callable[[], dict[str, Any]]:
    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, version=app.version, description=app.description or None, routes=app.routes
            )
            # FastAPI documents a 422 for every route; here validation errors are 400, in each API's own format.
            for path, operations in schema["paths"].items():
                for operation in operations.values():
                    if operation["responses"].get("422", {}).get("description") == "Validation Error":
                        del operation["responses"]["422"]
                    if path in OPEN:
                        operation["security"] = []
            for name in ("HTTPValidationError", "ValidationError"):
                schema.get("components", {}).get("schemas", {}).pop(name, None)
            bearer = {"type": "http", "scheme": "bearer"}
            header = {"type": "apiKey", "in": "header", "name": "x-api-key"}
            schema.setdefault("components", {})["securitySchemes"] = {"bearer": bearer, "x-api-key": header}
            # An empty entry makes the key optional.
            schema["security"] = [{"bearer": []}, {"x-api-key": []}, *([] if needs_key else [{}])]
            app.openapi_schema = schema
        return app.openapi_schema

    return openapi
