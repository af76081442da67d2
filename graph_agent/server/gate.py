"""The gate before every route of ours: who is it, and nothing of our failures gets out."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graph_agent.json_bounds import JsonBounds
from graph_agent.server.body import BodyLimits
from graph_agent.server.dialects import internal, refusal
from graph_agent.server.keys import Caller, caller_of
from graph_agent.server.limits import Limits
from graph_agent.server.pages import foreign_page
from graph_agent.server.paths import path_of
from graph_agent.server.problems import ProblemError
from graph_agent.server.request_ids import with_request_id
from graph_agent.server.settings import ServerSettings

OPEN = frozenset({"/.well-known/agent-card.json", "/health", "/ready", "/openapi.json", "/docs"})
"""Paths that need no key."""


class Gate:
    """ASGI middleware that lets known callers in, before anything of their request's body is read.

    Args:
        app: The application.
        settings: The keys and sizes.
        guarded: The paths that are ours, with `/*` at the end whatever is below them; any other goes through, to
            whoever serves it.
    """

    def __init__(self, app: ASGIApp, *, settings: ServerSettings, guarded: Sequence[str]) -> None:
        self._app = app
        # A request counts as one when its body is there; until then, nothing else bounds how many take memory.
        arriving = Limits(settings.concurrent_requests)
        self._limited = BodyLimits(
            app,
            max_bytes=settings.max_body_bytes,
            timeout_s=settings.body_timeout_s,
            refuse=refusal,
            held=lambda scope: arriving.held(scope["state"]["caller"].name),
            json=JsonBounds(values=settings.max_body_values, depth=settings.max_body_depth),
        )
        self._keys = settings.keys
        self._origins = settings.cors_origins
        self._public_url = settings.public_url
        self._guarded = frozenset(one for one in guarded if not one.endswith("*"))
        self._below = tuple(one.removesuffix("*") for one in guarded if one.endswith("*"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI calls it."""
        # As the routes see it: without the path that the application is mounted at.
        path = path_of(scope) if scope["type"] == "http" else ""
        if path not in self._guarded and not path.startswith(self._below):
            await self._app(scope, receive, send)
            return
        if path.startswith("/v1/"):
            send = with_request_id(send)
        if not self._keys and (foreign := foreign_page(HTTPConnection(scope), self._origins, self._public_url)):
            await refusal(path, ProblemError("origin", foreign))(scope, receive, send)
            return
        caller = caller_of(HTTPConnection(scope), self._keys)
        if caller is None and path not in OPEN:
            problem = ProblemError("key", "An API key is needed: send it as 'Authorization: Bearer' or 'x-api-key'.")
            await refusal(path, problem)(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller or Caller("")
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            # What is open takes no body, and a stranger's is not read.
            await (self._app if path in OPEN else self._limited)(scope, receive, noting)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told so, and no more than that
            response = internal(path, error)
            if not begun:
                await response(scope, receive, send)


async def caller(request: Request) -> Caller:
    """Who sends a request; for routes, as a dependency, asynchronous so that no thread is asked for it."""
    return who_sends(request)


def who_sends(request: HTTPConnection) -> Caller:
    """Who sends a request that the gate has let in."""
    known: Caller = request.state.caller
    return known
