"""Creates the server's FastAPI application, standalone or mounted in `langgraph dev`, with the health routes."""

from __future__ import annotations

import asyncio
import html
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from graph_agent.base._internal import telemetry
from graph_agent.base._internal.signals import drain_on_sigterm
from graph_agent.base._internal.text import html_table
from graph_agent.interfaces.server.admission.gate import OPEN_PATHS, guard
from graph_agent.interfaces.server.admission.worker_folder import is_to_stop_at_once, limits_of
from graph_agent.interfaces.server.agent_source import AgentSource
from graph_agent.interfaces.server.chat.attempts import deleting_attempts
from graph_agent.interfaces.server.chat.handler import ChatHandler, Runs
from graph_agent.interfaces.server.error_responses import on_invalid
from graph_agent.interfaces.server.host import open_host
from graph_agent.interfaces.server.http_request import path_of
from graph_agent.interfaces.server.metrics import Metrics
from graph_agent.interfaces.server.parameters import SESSION_HEADER, RequestServices, Services
from graph_agent.interfaces.server.problems import stopping
from graph_agent.interfaces.server.readiness import ReadinessCheck, readiness
from graph_agent.interfaces.server.response_models import ControlError, Health
from graph_agent.interfaces.server.response_models import Readiness as ReadinessReply
from graph_agent.interfaces.server.responses.background import Background
from graph_agent.interfaces.server.responses.records import deleting_expired
from graph_agent.interfaces.server.settings import CARD_PATH, MCP_PATH, REST_PATH, RPC_PATH, ServerSettings

_APIS = {
    "graph_agent.interfaces.server.openai_chat": ("/v1/chat/", "/v1/models"),
    "graph_agent.interfaces.server.responses.routes": ("/v1/responses",),
    "graph_agent.interfaces.server.responses.conversations": ("/v1/conversations",),
    "graph_agent.interfaces.server.anthropic_messages": ("/v1/messages",),
    "graph_agent.interfaces.server.facts": ("/memory/facts",),
    "graph_agent.interfaces.server.sessions": ("/sessions", "/memory/"),
    "graph_agent.interfaces.server.forks": ("/sessions",),
    "graph_agent.interfaces.server.feedback": ("/sessions",),
    "graph_agent.interfaces.server.session_queue": ("/sessions",),
    "graph_agent.interfaces.server.titles": ("/sessions",),
    "graph_agent.interfaces.server.revocations": ("/sessions",),
    "graph_agent.interfaces.server.cases": ("/sessions",),
    "graph_agent.interfaces.server.agui.routes": ("/agui",),
}
"""Module with the routes of an API → the prefixes of the paths of the routes."""
_A2A, _MCP = "graph_agent.interfaces.server.a2a.mount", "graph_agent.interfaces.server.mcp.mount"
_PROTOCOLS = {_A2A: (RPC_PATH, CARD_PATH), _MCP: (MCP_PATH,)}
"""Module of a protocol whose SDK has services that are opened at the first request → the prefixes of its paths."""
ON_DEMAND = (*_APIS, *_PROTOCOLS)
"""Modules that are imported at the first request for one of their paths."""
_OPTIONAL = {"graph_agent.interfaces.server.agui.routes": "ag_ui"}
"""Module of an API's routes → the package that it needs from an extra. Without the package, the API is left out."""
GUARDED = (
    *("/v1/*", "/memory/*", "/sessions", "/sessions/*", "/agui"),
    # In `langgraph dev`, other paths below the first belong to its server.
    *(RPC_PATH, f"{RPC_PATH}/", f"{REST_PATH}/*", CARD_PATH, MCP_PATH),
    *("/health", "/ready", "/metrics", "/openapi.json", "/docs", "/"),
)
"""Paths of this application, which need a key and whose bodies are checked.

A trailing `/*` includes all paths below.
"""

_ERROR: dict[str, Any] = {"model": ControlError}
_FOREIGN: dict[str, Any] = {**_ERROR, "description": "Sent by a page of another origin to a server without keys"}
_FOREIGN_HOST: dict[str, Any] = {**_ERROR, "description": "Sent to a foreign host name, and the server has no keys"}

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
"""Name → path, of the links that a client of `/` receives as JSON."""
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head><body>
<h1>{title}</h1><p>{description}</p><p>The whole description is in <a href="{root}/openapi.json">openapi.json</a>.</p>
{operations}</body></html>"""
"""Template of `/docs`."""


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
    """Create the application of one agent; the agent is opened when the application starts, and closed when it stops.

    Args:
        source: The agent.
        settings: Keys, limits and times; None for the defaults.
        db: A database URL that replaces the agent's own, e.g. `sqlite:///my.db` or `memory:`.
        mounted: Whether the application shares the server of `langgraph dev`, which has its own OpenAPI document,
            metrics, pages and MCP. Then these are left out, and the routes of all APIs are imported at once.
        handle_signals: Whether SIGTERM lets runs stop at their next superstep boundary, and a second one stops them at
            once; with `shared`, the second one counts at the `Supervisor` that started this process.
        shared: The folder of all worker processes, for common limits and metrics; None for a single process.
        a2a_only: Whether to serve only A2A: the agent card, JSON-RPC and HTTP+JSON.
    """
    settings = settings or ServerSettings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        """Open the agent and its services while the application runs, and close them when it stops.

        Meanwhile the services are in the application's state. The protocols A2A and MCP are opened at their first
        request; if only A2A is served, or the application shares the server of `langgraph dev`, A2A is opened at once.
        With `handle_signals`, SIGTERM drains the runs. Raises `ConfigError` if the agent or its database cannot be
        opened.
        """
        limits, streams, tasks = limits_of(settings, shared)
        async with (
            open_host(source, settings, db) as host,
            aclosing(Runs(host, metrics := Metrics(frozenset(host.tool_names), shared))) as runs,
            aclosing(Background(runs)) as background,
            deleting_expired(host),
            deleting_attempts(host),
        ):
            app.state.background_responses = background
            app.state.graph_agent = Services(ChatHandler(runs, limits), streams, ReadinessCheck(host, metrics, runs))
            async with AsyncExitStack() as stack:
                routes: list[BaseRoute] = []
                opening, opened = asyncio.Lock(), set[str]()

                async def open_protocol(name: str) -> None:
                    """Import a protocol's module in a thread, open its services, and add its routes before those of the
                    application.

                    Does nothing if that was done; concurrent calls wait for each other.
                    """
                    # Two first requests may arrive at once, and routes must not be added twice.
                    async with opening:
                        if name in opened:
                            return
                        mount = await asyncio.to_thread(import_module, name)
                        if name == _A2A:
                            found = mount.a2a_routes(runs, limits, tasks, db or source.db)
                        else:
                            found = mount.mcp_routes(runs, limits, streams, tasks, shared=shared is not None)
                        added = await stack.enter_async_context(found)
                        routes.extend(added)
                        app.router.routes[:0] = added
                        opened.add(name)

                if mounted or a2a_only:
                    await open_protocol(_A2A)
                app.state.open_protocol = open_protocol
                with drain_on_sigterm(
                    runs,
                    settings.drain_s,
                    enabled=handle_signals,
                    is_second=lambda: shared is None or is_to_stop_at_once(shared),
                ):
                    try:
                        yield
                    finally:
                        app.state.graph_agent = app.state.background_responses = app.state.open_protocol = None
                        app.router.routes[:] = [route for route in app.router.routes if route not in routes]

    app = FastAPI(
        title=source.name,
        version=metadata.version("graph-agent"),
        description=source.description,
        lifespan=lifespan,
        openapi_url=None if mounted or a2a_only else "/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.state.max_body_bytes = settings.max_body_bytes
    apis = _Apis(app, {} if a2a_only else _APIS)
    app.include_router(router)
    if not a2a_only:
        if mounted:
            # LangGraph's server copies the routes before the first request.
            apis.include_all()
        else:
            app.include_router(metrics_router)
            app.include_router(pages_router)
    # `langgraph dev` has a path of its own for MCP.
    protocols = {_A2A: _PROTOCOLS[_A2A]} if a2a_only or mounted else _PROTOCOLS
    app.add_middleware(_RoutesOnDemand, owner=app, apis=apis, protocols=protocols)
    if telemetry.observer is not None:
        app.add_middleware(telemetry.observer.middleware)
    app.add_exception_handler(RequestValidationError, on_invalid)
    guarded = tuple(
        path for path in GUARDED if not mounted or path not in (MCP_PATH, "/metrics", "/openapi.json", "/docs", "/")
    )
    guard(app, settings, guarded)
    app.openapi = partial(_openapi, app, apis, settings)  # type: ignore[method-assign]  # FastAPI's way to customize OpenAPI
    return app


class _Apis:
    """Adds the routes of APIs to an application when they are needed first.

    Args:
        app: The application.
        paths: Module with the routes of an API → the prefixes of its paths.
    """

    def __init__(self, app: FastAPI, paths: Mapping[str, tuple[str, ...]]) -> None:
        self._app = app
        self._missing = dict(paths)

    def include_all(self) -> None:
        """Import every API that is missing, and add its routes; leave out those whose packages are not installed."""
        for name in list(self._missing):
            self._include(name)

    async def include_for(self, path: str) -> None:
        """Add the routes of the APIs that a path belongs to, unless they are there.

        The module of an API is imported in a thread. An API is left out for good if a package that it needs is not
        installed.
        """
        for name in [name for name, paths in self._missing.items() if path.startswith(paths)]:
            if _is_installed(name):
                await asyncio.to_thread(import_module, name)
            self._include(name)

    def _include(self, name: str) -> None:
        """Add the routes of the API in the module `name`.

        Does nothing if they are there, or a package that the API needs is not installed.
        """
        if self._missing.pop(name, None) and _is_installed(name):
            self._app.include_router(import_module(name).router)


def _is_installed(name: str) -> bool:
    """Return whether the package is installed that the API in the module `name` needs; True if it needs none."""
    return name not in _OPTIONAL or find_spec(_OPTIONAL[name]) is not None


class _RoutesOnDemand:
    """ASGI middleware that adds the routes of an API or a protocol at the first request for one of its paths.

    Importing every API would take a third of the CPU time of a server's start.
    """

    def __init__(self, app: ASGIApp, *, owner: FastAPI, apis: _Apis, protocols: Mapping[str, tuple[str, ...]]) -> None:
        self._app = app
        self._owner = owner
        self._apis = apis
        self._protocols = protocols

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the missing routes for a request's path, opening the protocol that serves it if needed, then call the
        application.

        Raises `ProblemError` for a path of a protocol while the server is starting or stopping.
        """
        if scope["type"] in ("http", "websocket"):
            path = path_of(scope)
            await self._apis.include_for(path)
            for name, paths in self._protocols.items():
                if path.startswith(paths):
                    if (open_protocol := getattr(self._owner.state, "open_protocol", None)) is None:
                        raise stopping()
                    await open_protocol(name)
        await self._app(scope, receive, send)


def _renamed(parameter: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a parameter of the OpenAPI document with another name."""
    return {**parameter, "name": name, "schema": {**parameter["schema"], "title": name}}


def _openapi(app: FastAPI, apis: _Apis, settings: ServerSettings) -> dict[str, Any]:
    """Return the OpenAPI document of all APIs. It is created by the first call, which imports every API.

    FastAPI's 422 is removed, because validation errors are 400 here. The session header has the name of the setting, or
    is left out if that is empty. Two ways to send a key are declared; a key is optional if the server has none, and
    open paths need none.
    """
    if app.openapi_schema is not None:
        return app.openapi_schema
    apis.include_all()
    schema = get_openapi(title=app.title, version=app.version, description=app.description or None, routes=app.routes)
    # FastAPI documents a 422 for every route; here validation errors are 400, in each API's own format.
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            if operation["responses"].get("422", {}).get("description") == "Validation Error":
                del operation["responses"]["422"]
            if path in OPEN_PATHS:
                operation["security"] = []
            if parameters := operation.get("parameters"):
                operation["parameters"] = [
                    _renamed(each, settings.session_header) if each["name"] == SESSION_HEADER else each
                    for each in parameters
                    if settings.session_header or each["name"] != SESSION_HEADER
                ]
    for name in ("HTTPValidationError", "ValidationError"):
        schema.get("components", {}).get("schemas", {}).pop(name, None)
    bearer = {"type": "http", "scheme": "bearer"}
    header = {"type": "apiKey", "in": "header", "name": "x-api-key"}
    schema.setdefault("components", {})["securitySchemes"] = {"bearer": bearer, "x-api-key": header}
    # An empty entry makes the key optional.
    schema["security"] = [{"bearer": []}, {"x-api-key": []}, *([] if settings.keys else [{}])]
    app.openapi_schema = schema
    return schema


@pages_router.get("/")
async def root(request: Request) -> Response:
    """Return the page of the sessions.

    A client that accepts JSON and not HTML receives the name, and links to the documentation and the APIs, instead.
    """
    base = request.scope.get("root_path", "")
    accepted = request.headers.get("accept", "*/*")
    if "json" in accepted and "html" not in accepted:
        links = {name: f"{base}{path}" for name, path in _LINKS.items()}
        return JSONResponse({"name": request.app.title, "links": links}, headers={"vary": "accept"})
    # Imported with the first request for it.
    from graph_agent.web.page import page

    server = request.app.state.graph_agent
    given: dict[str, Any] = {"max_body_bytes": request.app.state.max_body_bytes, "memory": False}
    if isinstance(server, Services):
        host = server.chat.runs.host
        given |= {"memory": host.kept.builder.deps.memory is not None, "nodes": host.drawn_nodes}
    shown = page({"name": request.app.title, "description": request.app.description, **given})
    headers = {
        "content-security-policy": shown.policy,
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
        "vary": "accept",
    }
    return HTMLResponse(shown.html, headers=headers)


@pages_router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """Return a page that lists the operations of every API. It has no script and loads nothing from elsewhere."""
    schema = request.app.openapi()
    rows = [
        (f"{method.upper()} {path}", operation.get("description") or operation.get("summary", ""))
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
    ]
    info = {name: html.escape(str(schema["info"].get(name, ""))) for name in ("title", "description")}
    text = html_table(f"Operations of version {schema['info']['version']}", rows)
    return HTMLResponse(_PAGE.format(**info, root=html.escape(request.scope.get("root_path", "")), operations=text))


@router.get("/health", responses={403: _FOREIGN_HOST})
async def health() -> Health:
    """Report that the process is alive. Nothing else is checked."""
    return Health(status="ok")


@router.get(
    "/ready",
    response_model=ReadinessReply,
    responses={403: _FOREIGN_HOST, 503: {"model": ReadinessReply, "description": "Requests cannot be answered"}},
)
async def ready(request: Request) -> Response:
    """Report whether requests can be answered: checks the model, the MCP servers and the database, 5 seconds each.

    The status is 503 if one of them fails, or the server is stopping. A model behind an OpenAI-compatible endpoint is
    checked by listing its models, at most every 10 seconds, which uses no tokens. A model that failed a request within
    the last minute is not ready.
    """
    server = getattr(request.app.state, "graph_agent", None)
    if not isinstance(server, Services):
        return readiness({"server": "stopping"})
    return readiness(await server.readiness.checks())


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
async def metrics(server: RequestServices) -> Response:
    """Return the metrics of all processes of the server in Prometheus's text format."""
    return Response(server.chat.runs.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})
