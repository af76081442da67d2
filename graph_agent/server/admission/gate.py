"""Guards an application: keys, origins, limits of bodies, and error responses without internals."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graph_agent._internal.json_bounds import JsonBounds
from graph_agent.server.admission.body import BodyLimits
from graph_agent.server.admission.keys import Caller, caller_of, key_in
from graph_agent.server.admission.shared_limits import Limits
from graph_agent.server.errors.problems import ProblemError
from graph_agent.server.errors.responses import internal_error, on_http, on_problem, path_of, refusal
from graph_agent.server.settings import ServerSettings
from graph_agent.server.sse import with_request_id


def origin_fault(request: HTTPConnection, origins: Collection[str], public_url: str = "") -> str:
    """Return why a request may come from a page without permission; empty if it is permitted.

    A page of another site sends its `Origin`. A page whose host name was rebound to this machine (DNS rebinding) has
    the server's own origin, and is detected by `Host`: a name with a dot can belong to anyone, an address or a bare
    name cannot.

    Args:
        origins: Origins whose pages may call this server.
        public_url: The server's URL for clients; its host name is permitted. Empty if there is none.
    """
    origin = request.headers.get("origin")
    if origin is not None and (origin in origins or "*" in origins):
        return ""
    host = _name(f"//{request.headers.get('host', '')}")
    if not _is_bare(host) and host != _name(public_url):
        return (
            f"Without API keys this server answers to an address, a bare name or the host of public_url only, not to "
            f"{host!r}; set keys or public_url."
        )
    if origin is not None and not _is_this_machine(_name(origin)):
        return "Pages of this origin may not call this server; name it in cors_origins."
    return ""


def _name(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return "."  # a name that no page can have


def _is_bare(host: str) -> bool:
    return "." not in host or host.endswith(".localhost") or _address(host) is not None


def _is_this_machine(host: str) -> bool:
    address = _address(host)
    return address.is_loopback if address is not None else host == "localhost" or host.endswith(".localhost")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


OPEN = frozenset({"/", "/.well-known/agent-card.json", "/health", "/ready", "/openapi.json", "/docs"})
"""Paths that need no key."""
_NO_KEY = "An API key is needed: send it as 'Authorization: Bearer' or 'x-api-key'."
_UNKNOWN_KEY = "The API key is none of this server's; check the key that the client sends."


def guard(app: Starlette, settings: ServerSettings, guarded: Sequence[str]) -> None:
    """Add the admission layer to an application that has not started.

    Args:
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


class Gate:
    """ASGI middleware that authenticates callers before any part of a request's body is read.

    Args:
        settings: Keys and limits.
        guarded: The paths to guard; a trailing `/*` includes all paths below. Requests to other paths pass unchecked.
    """

    def __init__(self, app: ASGIApp, *, settings: ServerSettings, guarded: Sequence[str]) -> None:
        self._app = app
        # Limits per caller apply once the body has arrived; until then only this limits the memory of bodies.
        arriving = Limits(settings.concurrent_requests)
        self._limited = BodyLimits(
            app,
            max_bytes=settings.max_body_bytes,
            timeout_s=settings.body_timeout_s,
            refuse=refusal,
            slot=lambda scope: arriving.slot(scope["state"]["caller"].name),
            json=JsonBounds(values=settings.max_body_values, depth=settings.max_body_depth),
        )
        self._keys = settings.keys
        self._origins = settings.cors_origins
        self._public_url = settings.public_url
        self._guarded = frozenset(one for one in guarded if not one.endswith("*"))
        self._below = tuple(one.removesuffix("*") for one in guarded if one.endswith("*"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit or refuse a request."""
        # As the routes see it: without the mount path.
        path = path_of(scope) if scope["type"] in ("http", "websocket") else ""
        if path not in self._guarded and not path.startswith(self._below):
            await self._app(scope, receive, send)
            return
        if path.startswith("/v1/"):
            send = with_request_id(send)
        if not self._keys and (fault := origin_fault(HTTPConnection(scope), self._origins, self._public_url)):
            await refusal(path, ProblemError("origin", fault))(scope, receive, send)
            return
        caller = caller_of(HTTPConnection(scope), self._keys)
        if caller is None and path not in OPEN:
            problem = ProblemError("key", _UNKNOWN_KEY if key_in(HTTPConnection(scope)) else _NO_KEY)
            await refusal(path, problem)(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller or Caller("")
        started = False

        async def send_and_mark(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            # Open paths take no body, so that the body of an unauthenticated request is never read.
            await (self._app if path in OPEN else self._limited)(scope, receive, send_and_mark)
        except Exception as error:  # noqa: BLE001 - any failure must end in an error response without details
            response = internal_error(path, error)
            if not started:
                await response(scope, receive, send)


async def caller(request: Request) -> Caller:
    """Return the caller of a request; a dependency of routes, async because FastAPI runs sync ones in a thread."""
    return admitted_caller(request)


def admitted_caller(request: HTTPConnection) -> Caller:
    """Return the caller of an admitted request."""
    admitted: Caller = request.state.caller
    return admitted
