"""An application that is the A2A server of a compiled graph and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from a2a.types import AgentCard
from starlette.applications import Starlette

from graph_agent.a2a.server import A2AServer
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.draining import draining_on_sigterm
from graph_agent.server.a2a_mount import CallerContext, admit_requests, bounds_of, held_by
from graph_agent.server.admission import guard
from graph_agent.server.settings import ServerSettings
from graph_agent.server.workers import limits_of


def a2a_app(
    graph: CompiledAgentGraph,
    card: AgentCard,
    *,
    settings: ServerSettings | None = None,
    drain_s: float | None = None,
    **options: Any,
) -> Starlette:
    """Make an application that is an agent's A2A server and nothing else.

    Requests are admitted as by `graph-agent a2a`. Only the HTTP server can bound the size and the time of headers, and
    idle connections: give uvicorn `http=graph_agent.server.connections.BoundedProtocol` for that.

    Args:
        graph: The agent, compiled with a checkpointer.
        card: Its card.
        settings: API keys, origins and limits; None for the defaults, which are without keys: then requests of web
            pages from elsewhere are refused, and so are those to a host name with a dot.
        drain_s: Seconds that tasks may take to their next boundary at the first SIGTERM; a second one stops them at
            once. None to leave signals alone: then tasks are stopped with the application.
        options: As for `A2AServer`. With keys, its users are the names of the keys.

    Raises:
        ConfigError: When the graph keeps nothing.
    """
    settings = settings or ServerSettings()
    limits, _, tasks = limits_of(settings, None)
    builder = {"context_builder": CallerContext()} if settings.keys else {}
    server = A2AServer(graph, card, **{"held": held_by(tasks), "bounds": bounds_of(settings), **builder, **options})
    admit_requests(server.routes, server, limits)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        with draining_on_sigterm(server, drain_s or 0, enabled=drain_s is not None):
            try:
                yield
            finally:
                if server.draining:
                    # Tasks that nobody watches hold no connection open; they come to their boundary here.
                    await server.drained(drain_s or 0)
                await server.aclose()

    app = Starlette(routes=server.routes, lifespan=lifespan)
    guard(app, settings, ["/*"])
    return app
