"""The agent for A2A clients, on the application's own address and behind its own keys."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager

from a2a.auth.user import UnauthenticatedUser, User
from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.routes import create_agent_card_routes
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.types import AgentCard
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from graph_agent.a2a.server import CARD_AGE_S, A2AServer
from graph_agent.a2a.server_card import REST_PATH, RPC_PATH, agent_card
from graph_agent.a2a.server_executor import Held, NoPlaceError
from graph_agent.a2a.server_requests import RequestBounds
from graph_agent.a2a.server_sessions import at_work
from graph_agent.a2a.server_store import open_stores
from graph_agent.draining import Drainable
from graph_agent.redaction import SECRET_HEADERS
from graph_agent.running import sees_other_processes
from graph_agent.server.gate import who_sends
from graph_agent.server.keys import Caller
from graph_agent.server.limits import Limits
from graph_agent.server.problems import ProblemError, stopping
from graph_agent.server.schemas import SESSION_ID
from graph_agent.server.settings import ServerSettings
from graph_agent.server.under_way import Runs

CARD_PATH = AGENT_CARD_WELL_KNOWN_PATH
PATHS = (RPC_PATH, f"{RPC_PATH}/", f"{REST_PATH}/*")
"""Where A2A requests go, the card aside; what else is below the first is another server's, as in `langgraph dev`."""


@asynccontextmanager
async def a2a_routes(runs: Runs, limits: Limits, tasks: Limits, db: str) -> AsyncIterator[list[BaseRoute]]:
    """Open the agent for A2A clients, and stop their tasks on leaving.

    A conversation is a session of the caller's, under its own id where that may be a session's id. Other processes may
    serve the same database, also another server that is started before this one has stopped: a task may be cancelled
    through any of them, and through one that does not run it is watched without its answer's pieces.

    Args:
        runs: The server's runs; when they are stopped, so are the tasks.
        limits: How many requests each caller may have.
        tasks: How many tasks of each caller may be at work, which go on when their requests have been answered.
        db: Where tasks are kept.
    """
    host = runs.host
    others = at_work(host.kept, _thread) if await sees_other_processes(host.saver) else None
    async with open_stores(db, at_work=others) as stores:
        server = A2AServer(
            host.kept,
            _card(runs, ""),
            stores=stores,
            context=host.source.a2a_context,
            show_outputs=host.source.show_outputs,
            session_ids=_thread,
            context_builder=CallerContext(),
            credential_headers=host.credential_headers,
            held=held_by(tasks),
            bounds=bounds_of(host.settings),
        )
        closing = runs.closed_with(server.aclose, drain=server.drain)
        admit_requests(server.routes, runs, limits)
        card = Route(CARD_PATH, _card_endpoint(runs), methods=["GET"])
        try:
            yield [card, *(route for route in server.routes if getattr(route, "path", "") != CARD_PATH)]
        finally:
            if runs.draining:
                # Tasks that nobody watches hold no connection open; they come to their boundary here.
                await server.drained(host.settings.drain_s)
            await asyncio.shield(closing())


def bounds_of(settings: ServerSettings) -> RequestBounds:
    """How much one A2A request may hold."""
    return RequestBounds(
        values=settings.max_a2a_values,
        depth=settings.max_body_depth,
        parts=settings.max_a2a_parts,
        characters=settings.max_a2a_characters,
    )


def admit_requests(routes: Iterable[BaseRoute], runs: Drainable, limits: Limits) -> None:
    """Have each A2A request checked, and counted as a request of its caller.

    Args:
        routes: The routes of an `A2AServer`.
        runs: What the requests begin; while it drains, they are refused.
        limits: How many requests each caller may have.
    """
    for route in routes:
        if isinstance(route, Route):
            route.app = _Limited(route.app, runs, limits)


def held_by(tasks: Limits) -> Held:
    """Bound the tasks of each user that are at work at the same time."""

    @contextmanager
    def held(user: str) -> Iterator[None]:
        try:
            tasks.enter(user)
        except ProblemError as problem:
            raise NoPlaceError(problem.message) from None
        try:
            yield
        finally:
            tasks.leave(user)

    return held


def _card(runs: Runs, url: str) -> AgentCard:
    source = runs.host.source
    card = agent_card(
        runs.host.kept,
        url,
        name=source.name,
        description=source.description,
        skills=source.skills,
        push_notifications=source.push_notifications,
    )
    if runs.host.settings.keys:
        card.security_schemes["bearer"].http_auth_security_scheme.scheme = "Bearer"
        card.security_schemes["x-api-key"].api_key_security_scheme.name = "x-api-key"
        card.security_schemes["x-api-key"].api_key_security_scheme.location = "header"
        for name in ("bearer", "x-api-key"):
            card.security_requirements.add().schemes[name].list.extend([])
    return card


def _card_endpoint(runs: Runs) -> ASGIApp:
    class _Endpoint:
        """The card, with the address it was asked at unless the server was told another."""

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive)
            url = runs.host.settings.public_url or str(request.base_url)
            [route] = create_agent_card_routes(_card(runs, url), cache_control=f"private, max-age={CARD_AGE_S}")
            response: Response = await route.endpoint(request)
            await response(scope, receive, send)

    return _Endpoint()


class _Limited:
    """One A2A request counts as a request of its caller, and none is begun while the server stops.

    The SDK reads a body of any type; a browser sends `text/plain` to another site without asking that site first.
    """

    def __init__(self, app: ASGIApp, runs: Drainable, limits: Limits) -> None:
        self._app = app
        self._runs = runs
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._runs.draining:
            raise stopping()
        if not _is_json(Headers(scope=scope)):
            raise ProblemError("media_type", "An A2A request is JSON; send it with 'Content-Type: application/json'.")
        with self._limits.held(who_sends(Request(scope)).name):
            await self._app(scope, receive, send)


def _is_json(headers: Headers) -> bool:
    """Whether a request has a JSON body, or none."""
    if "transfer-encoding" not in headers and headers.get("content-length", "0") == "0":
        return True
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


class _KeyUser(User):
    """The owner of a key."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self._name


class CallerContext(ServerCallContextBuilder):
    """Tells the SDK whose request it is, and its headers without the key."""

    def build(self, request: Request) -> ServerCallContext:
        """As the SDK's."""
        name = who_sends(request).name
        return ServerCallContext(
            user=_KeyUser(name) if name else UnauthenticatedUser(),
            state={"headers": {name: value for name, value in request.headers.items() if name not in SECRET_HEADERS}},
            requested_extensions=get_requested_extensions(request.headers.getlist(HTTP_EXTENSION_HEADER)),
        )


def _thread(user: str, context_id: str) -> str:
    # A client may name its conversation as it likes, also with a slash, which would reach out of its own sessions.
    fits = re.fullmatch(SESSION_ID, context_id)
    session_id = context_id if fits else f"a2a-{hashlib.sha256(context_id.encode()).hexdigest()}"
    return Caller(user).thread(session_id)
