"""Installation of the admission layer: keys, origins, limits of requests, and error responses."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from graph_agent.server.admission.gate import Gate
from graph_agent.server.errors.problems import ProblemError
from graph_agent.server.errors.responses import on_http, on_problem
from graph_agent.server.settings import ServerSettings


def guard(app: Starlette, settings: ServerSettings, guarded: Sequence[str]) -> None:
    """Add the admission layer to an application that has not started.

    Args:
        app: The application.
        settings: Keys, origins and limits.
        guarded: The paths to guard, as for `Gate`.
    """
    app.add_exception_handler(ProblemError, on_problem)
    app.add_exception_handler(HTTPException, on_http)
    app.add_middleware(Gate, settings=settings, guarded=guarded)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.cors_origins), allow_methods=["*"], allow_headers=["*"]
        )
