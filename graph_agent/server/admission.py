"""The admission layer of every server: keys, origins and hosts, sizes and times of requests, refusals."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from graph_agent.server.dialects import on_http, on_problem
from graph_agent.server.gate import Gate
from graph_agent.server.problems import ProblemError
from graph_agent.server.settings import ServerSettings


def guard(app: Starlette, settings: ServerSettings, guarded: Sequence[str]) -> None:
    """Put the admission layer before an application that does not run yet.

    Args:
        app: The application.
        settings: Keys, origins and limits.
        guarded: The paths that requests are admitted to, as for `Gate`.
    """
    app.add_exception_handler(ProblemError, on_problem)
    app.add_exception_handler(HTTPException, on_http)
    app.add_middleware(Gate, settings=settings, guarded=guarded)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.cors_origins), allow_methods=["*"], allow_headers=["*"]
        )
