"""Application that serves a compiled graph over A2A only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from a2a.types import AgentCard
from starlette.applications import Starlette

from graph_agent._internal.signals import drain_on_sigterm
from graph_agent.a2a.server.app import A2AServer
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.server.a2a.mount import CallerContext, admit_requests, bounds_of, task_slots
from graph_agent.server.admission.gate import guard
from graph_agent.server.admission.shared_limits import limits_of
from graph_agent.server.settings import ServerSettings


def a2a_app(
    graph: CompiledAgentGraph,
    card: AgentCard,
    *,
    settings: ServerSettings | None = None,
    drain_s: float | None = None,
    **options: Any,
) -> Starlette:
    """Create an application that serves an agent over A2A only.

    Requests are admitted as by `graph-agent a2a`. Only the HTTP server can limit the size and time of headers, and idle
    connections: pass `http=graph_agent.server.admission.connections.BoundedProtocol` to uvicorn for that.

    Args:
        graph: The agent, compiled with a checkpointer.
        card: Its card.
        settings: API keys, origins and limits; None for the defaults, which have no keys: then requests of web pages of
            other origins, and requests to a host name with a dot, are refused.
        drain_s: Seconds that tasks may take to reach their next step boundary after the first SIGTERM; a second one
            stops them at once. None to install no signal handler: then tasks are stopped with the application.
        options: As for `A2AServer`. With keys, its users are the names of the keys.

    Raises:
        ConfigError: If the graph has no checkpointer.
    """
    settings = settings or ServerSettings()
    limits, _, tasks = limits_of(settings, None)
    builder = {"context_builder": CallerContext()} if settings.keys else {}
    server = A2AServer(graph, card, **{"slots": task_slots(tasks), "bounds": bounds_of(settings), **builder, **options})
    admit_requests(server.routes, server, limits)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        with drain_on_sigterm(server, drain_s or 0, enabled=drain_s is not None):
            try:
                yield
            finally:
                if server.draining:
                    # Tasks without a connected client hold no connection open; only this waits for their boundary.
                    await server.drained(drain_s or 0)
                await server.aclose()

    app = Starlette(routes=server.routes, lifespan=lifespan)
    guard(app, settings, ["/*"])
    return app
