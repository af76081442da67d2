"""The FastAPI application, on its own or inside `langgraph dev`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi

from graph_agent.draining import draining_on_sigterm
from graph_agent.server import anthropic_routes, control_routes, health_routes, openai_routes
from graph_agent.server.a2a_mount import CARD_PATH, PATHS, a2a_routes
from graph_agent.server.admission import guard
from graph_agent.server.chat import Chat
from graph_agent.server.dialects import on_invalid
from graph_agent.server.gate import OPEN
from graph_agent.server.host import open_host
from graph_agent.server.metrics import Metrics
from graph_agent.server.parameters import Services
from graph_agent.server.readiness import Readiness
from graph_agent.server.settings import ServerSettings
from graph_agent.server.sources import AgentSource
from graph_agent.server.supervisor import is_to_stop_at_once
from graph_agent.server.under_way import Runs
from graph_agent.server.workers import limits_of

GUARDED = (
    "/v1/*",
    "/memory/*",
    "/sessions/*",
    *PATHS,
    CARD_PATH,
    "/health",
    "/ready",
    "/metrics",
    "/openapi.json",
    "/docs",
)
"""The paths that are ours; with `/*` at the end, whatever is below them."""


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
    """Make the application of one agent; the agent is opened when the application starts.

    Args:
        source: The agent.
        settings: Keys, limits and times; None for the defaults.
        db: Another database than the agent's own, e.g. `sqlite:///my.db` or `memory:`.
        mounted: Whether another server's routes stand beside ours, as in `langgraph dev`, which has an OpenAPI and
            metrics of its own.
        shared: A folder of all these processes, for limits and metrics that count them together; None where this one
            counts for itself.
        a2a_only: Whether A2A is all that is served: the agent card, JSON-RPC and HTTP+JSON.
        handle_signals: Whether SIGTERM lets runs stop at their next boundary, and a second one stops them at once; with
            `shared`, a second one to the `Supervisor` that started this process.
    """
    settings = settings or ServerSettings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        limits, streams, tasks = limits_of(settings, shared)
        async with (
            open_host(source, settings, db) as host,
            aclosing(Runs(host, Metrics(frozenset(host.tool_names), shared))) as runs,
        ):
            app.state.graph_agent = Services(Chat(runs, limits), streams, Readiness(runs))
            async with a2a_routes(runs, limits, tasks, db or source.db) as routes:
                app.router.routes[:0] = routes
                with draining_on_sigterm(
                    runs,
                    settings.drain_s,
                    enabled=handle_signals,
                    is_second=lambda: shared is None or is_to_stop_at_once(shared),
                ):
                    try:
                        yield
                    finally:
                        app.state.graph_agent = None
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
        for router in (openai_routes.router, anthropic_routes.router, control_routes.router, health_routes.router):
            app.include_router(router)
        if not mounted:
            app.include_router(health_routes.metrics_router)
    app.add_exception_handler(RequestValidationError, on_invalid)
    guarded = tuple(path for path in GUARDED if not mounted or path not in ("/metrics", "/openapi.json", "/docs"))
    guard(app, settings, guarded)
    app.openapi = _openapi(app, needs_key=bool(settings.keys))  # type: ignore[method-assign]  # how FastAPI lets an application make its own
    return app


def _openapi(app: FastAPI, *, needs_key: bool) -> Callable[[], dict[str, Any]]:
    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(
                title=app.title, version=app.version, description=app.description or None, routes=app.routes
            )
            # FastAPI adds a 422 of its own to every route; what does not fit is a 400 here, in each API's shape.
            for path, operations in made["paths"].items():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
                    if path in OPEN:
                        operation["security"] = []
            for name in ("HTTPValidationError", "ValidationError"):
                made.get("components", {}).get("schemas", {}).pop(name, None)
            bearer = {"type": "http", "scheme": "bearer"}
            header = {"type": "apiKey", "in": "header", "name": "x-api-key"}
            made.setdefault("components", {})["securitySchemes"] = {"bearer": bearer, "x-api-key": header}
            # An empty one says that it goes without, too.
            made["security"] = [{"bearer": []}, {"x-api-key": []}, *([] if needs_key else [{}])]
            app.openapi_schema = made
        return app.openapi_schema

    return described
