"""Admits requests: identifies the caller by key, checks origins and limits, and hides internals in error responses.

A *caller* is the owner of an API key. A *thread* is LangGraph's `thread_id`, which contains the caller's name, so that
callers do not share sessions.
"""

from __future__ import annotations

import hmac
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graph_agent.base._internal.json_bounds import JsonBounds
from graph_agent.base._internal.signals import Drainable
from graph_agent.base.approvals.decisions import DEFAULT_DECIDER
from graph_agent.interfaces.server.admission.body import SMALL_BYTES, BodyLimits, ReplayedBody
from graph_agent.interfaces.server.admission.origins import OriginCheck
from graph_agent.interfaces.server.error_responses import internal_error, on_http, on_problem, refusal
from graph_agent.interfaces.server.http_request import add_request_id, path_of
from graph_agent.interfaces.server.problems import ProblemError, stopping
from graph_agent.interfaces.server.settings import MCP_PATH, REST_PATH, ApiKey, ServerSettings
from graph_agent.interfaces.server.sse import HEAD

WINDOW_S = 60.0
"""Length of the sliding window of the limit per minute, in seconds."""

OPEN_PATHS = frozenset({"/", "/.well-known/agent-card.json", "/health", "/ready", "/openapi.json", "/docs"})
"""Paths that need no key."""
_NO_KEY = "An API key is needed: send it as 'Authorization: Bearer' or 'x-api-key'."
_UNKNOWN_KEY = "The API key is none of this server's; check the key that the client sends."
_RUNS = frozenset({"SendMessage", "SendStreamingMessage", "message/send", "message/stream", "tools/call"})
"""Methods of A2A and MCP that start a run."""


class RequestLimits:
    """Counts the active requests of each caller and those of the last minute, in this process, and refuses too many.

    Args:
        concurrent: Maximum active requests of one caller.
        per_minute: Maximum requests of one caller that start a run in any 60 seconds; None for no limit.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, concurrent: int, per_minute: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._concurrent = concurrent
        self._per_minute = per_minute
        self._clock = clock
        self._active: dict[str, int] = {}
        self._started: dict[str, deque[float]] = {}

    def enter(self, caller: str, *, starts: bool = True) -> None:
        """Count a request as active until `leave` is called. A request that is refused is not counted at all.

        Args:
            caller: Name of the caller.
            starts: Whether the request starts a run, so that it also counts against the limit per minute.

        Raises:
            ProblemError: The caller has too many active requests, or has started too many runs in the last minute
                (`busy`).
        """
        self._check_concurrent(self._active.get(caller, 0))
        if starts and self._per_minute is not None:
            self._count_start(caller)
        self._active[caller] = self._active.get(caller, 0) + 1

    def count(self, caller: str) -> None:
        """Count a run that starts later, such as one queued behind the current run, against the limit per minute only.

        Raises `ProblemError` (`busy`) if the caller has started too many runs in the last minute.
        """
        if self._per_minute is not None:
            self._count_start(caller)

    def leave(self, caller: str) -> None:
        """Count the end of a request that `enter` has counted.

        Raises `KeyError` if the caller has no active request.
        """
        self._active[caller] -= 1
        if not self._active[caller]:
            # Callers come and go; the dict must not grow forever.
            del self._active[caller]

    def _count_start(self, caller: str) -> None:
        """Record the start of a run, and raise `ProblemError` (`busy`) instead if the caller has reached the limit per
        minute.

        Starts older than a minute are dropped.
        """
        started = self._started.setdefault(caller, deque())
        now = self._clock()
        while started and started[0] <= now - WINDOW_S:
            started.popleft()
        self._check_rate(len(started), started[0] if started else None, now)
        started.append(now)

    @contextmanager
    def slot(self, caller: str, *, starts: bool = True) -> Iterator[None]:
        """Count a request as active within the context; with `starts`, it also counts against the limit per minute.

        Raises `ProblemError` (`busy`) on entry if the caller has reached a limit.
        """
        self.enter(caller, starts=starts)
        try:
            yield
        finally:
            self.leave(caller)

    def _check_concurrent(self, active: int) -> None:
        """Raise `ProblemError` (`busy`, retry after 1 s) if `active`, the number of a caller's active requests, has
        reached the limit.
        """
        if active >= self._concurrent:
            raise ProblemError(
                "busy", f"Too many requests at the same time; this key may have {self._concurrent}.", retry_after_s=1
            )

    def _check_rate(self, started: int, oldest: float | None, now: float) -> None:
        """Raise `ProblemError` (`busy`) if a caller has started too many runs; do nothing without a limit per minute.

        The error has the seconds until the oldest one no longer counts.

        Args:
            started: Number of starts in the last minute.
            oldest: Time of the oldest of them on the clock; None if there is none.
            now: The current time on the clock.
        """
        if self._per_minute is not None and oldest is not None and started >= self._per_minute:
            raise ProblemError(
                "busy",
                f"Too many requests; this key may send {self._per_minute} a minute.",
                retry_after_s=oldest + WINDOW_S - now,
            )


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, who is the owner of an API key."""

    name: str
    """Name of the API key; empty on a server without keys."""

    @property
    def person(self) -> str:
        """Name that the history records with decisions of the caller; a default name on a server without keys."""
        return self.name or DEFAULT_DECIDER

    def thread(self, session_id: str) -> str:
        """Return the LangGraph thread of one of this caller's sessions, e.g. `alice/s1`; the session id itself without
        keys.
        """
        return f"{self.name}/{session_id}" if self.name else session_id

    def session(self, thread_id: str) -> str | None:
        """Return the session id of a thread; None if the thread is another caller's, or is not named like a session,
        whose id has no slash.
        """
        session_id = thread_id.removeprefix(f"{self.name}/") if self.name else thread_id
        return None if "/" in session_id or self.thread(session_id) != thread_id else session_id

    def pending_thread(self, token: str) -> str:
        """Return the LangGraph thread of a request without a session that waits for results of the client's own tools.

        Args:
            token: Random name of the request. The thread is e.g. `alice/parked/TOKEN`.
        """
        return f"{self.name}/parked/{token}"  # the name is in stored databases


def caller_of(request: HTTPConnection, keys: Sequence[ApiKey]) -> Caller | None:
    """Return the caller of a request by the key in its headers; None if the key is missing or unknown.

    If the server has no keys, every request has the caller with an empty name. The given key is compared with every
    key, each in constant time, so that the duration reveals nothing about the keys.

    Args:
        request: The request, or the handshake of a WebSocket.
        keys: The keys of the server.
    """
    if not keys:
        # A server without keys has one caller for everyone who reaches it.
        return Caller("")
    given = key_in(request)
    found: Caller | None = None
    for key in keys:
        if hmac.compare_digest(key.key.get_secret_value().encode(), given.encode("utf-8", "surrogatepass")):
            found = Caller(key.name)
    return found


def key_in(request: HTTPConnection) -> str:
    """Return the API key in the headers of a request: the token of `Authorization: Bearer`, or else the header
    `x-api-key`.

    Empty if there is neither.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else request.headers.get("x-api-key", "")


def guard(app: Starlette, settings: ServerSettings, guarded: Sequence[str]) -> None:
    """Add authentication, origin checks, body limits and error responses to an application, which must not have
    started.

    CORS headers are added only if the settings name origins; they are also on refused requests.

    Args:
        app: The application.
        settings: Keys, limits and permitted origins of the server.
        guarded: The paths that are checked; a trailing `/*` includes all paths below. Other paths pass unchecked.
    """
    app.add_exception_handler(ProblemError, on_problem)
    app.add_exception_handler(HTTPException, on_http)
    app.add_middleware(Gate, settings=settings, guarded=guarded)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.cors_origins), allow_methods=["*"], allow_headers=["*"]
        )


class Gate:
    """ASGI middleware that checks the origin, the key and the body of requests for guarded paths.

    It stores the caller in `scope["state"]["caller"]`, and converts any exception of the application to a response
    without details. The arguments are those of `guard`.
    """

    def __init__(self, app: ASGIApp, *, settings: ServerSettings, guarded: Sequence[str]) -> None:
        self._app = app
        # Limits per caller apply once the body has arrived; until then only this limits the memory of bodies.
        self._arriving = RequestLimits(settings.concurrent_requests)
        self._bodies = BodyLimits(
            max_bytes=settings.max_body_bytes,
            timeout_s=settings.body_timeout_s,
            json=JsonBounds(values=settings.max_body_values, depth=settings.max_body_depth),
        )
        self._keys = settings.keys
        self._origins = OriginCheck(settings.cors_origins, settings.public_url)
        self._guarded = frozenset(one for one in guarded if not one.endswith("*"))
        self._below = tuple(one.removesuffix("*") for one in guarded if one.endswith("*"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or send the response that refuses it. Paths that are not guarded pass
        unchecked.

        A guarded path is checked in this order: the origin, if the server has no keys; the key, before the body is
        read; how many bodies of the caller arrive at the same time; the limits of the body. Open paths need no key, and
        neither their body nor that of a WebSocket is read here. The caller is stored in the
        request's state, with an empty name if there is no key. A HEAD request is passed on as GET, except to MCP.
        Responses below `/v1/` get a request id. An exception of the application is logged and, unless the response has
        begun, answered with an error without details.
        """
        # As the routes see it: without the mount path.
        path = path_of(scope) if scope["type"] in ("http", "websocket") else ""
        if path not in self._guarded and not path.startswith(self._below):
            await self._app(scope, receive, send)
            return
        started = False

        async def send_and_mark(message: Message) -> None:
            """Send a message, and record that the response has begun; one of the chat APIs gets a request id."""
            nonlocal started
            if message["type"] == "http.response.start" and path.startswith("/v1/"):
                add_request_id(message)
            started = True
            await send(message)

        connection = HTTPConnection(scope)
        try:
            # With keys, a foreign page cannot send one that it does not know.
            if not self._keys:
                self._origins.check(connection, path)
            caller = caller_of(connection, self._keys)
            if caller is None and path not in OPEN_PATHS:
                raise ProblemError("key", _UNKNOWN_KEY if key_in(connection) else _NO_KEY)
        except ProblemError as refused:
            await refusal(path, refused)(scope, receive, send_and_mark)
            return
        scope.setdefault("state", {})["caller"] = caller or Caller("")
        if scope.get("method") == "HEAD" and path != MCP_PATH:
            # FastAPI's routes refuse it. The HTTP server sends no body; a stream ends before its first event.
            scope = {**scope, "method": "GET", "state": {**scope["state"], HEAD: True}}
        try:
            # Open paths take no body, so that the body of an unauthenticated request is never read.
            if path in OPEN_PATHS or scope["type"] != "http":
                await self._app(scope, receive, send_and_mark)
                return
            try:
                with self._arriving.slot(scope["state"]["caller"].name):
                    body = await self._bodies.read(scope, receive)
            except ProblemError as refused:
                response = refusal(path, refused)
                response.headers["connection"] = "close"  # unread bytes of the body must not be parsed as a request
                await response(scope, receive, send_and_mark)
                return
            if body is not None:
                await self._app(scope, ReplayedBody(body, receive), send_and_mark)
                self._bodies.count_answered(len(body))
        except Exception as error:  # noqa: BLE001 - any failure must end in an error response without details
            response = internal_error(path, error)
            if not started:
                await response(scope, receive, send_and_mark)


async def caller(request: Request) -> Caller:
    """Return the caller of a request, as a dependency of routes.

    It is asynchronous because FastAPI would run it in a thread otherwise.
    """
    return admitted_caller(request)


def admitted_caller(request: HTTPConnection) -> Caller:
    """Return the caller that `Gate` has stored. Raises `AttributeError` for a path that `Gate` does not guard."""
    admitted: Caller = request.state.caller
    return admitted


def admit_requests(
    routes: Iterable[BaseRoute],
    runs: Drainable,
    limits: RequestLimits,
    *,
    protocol: str,
    streams: RequestLimits | None = None,
) -> None:
    """Make the routes of an SDK check and count each request, and refuse requests while the server is stopping.

    Args:
        routes: The routes, which are changed in place.
        runs: The runs of this process, which report whether the server is stopping.
        limits: Limits of requests per caller.
        protocol: Name of the protocol for messages, e.g. `MCP`.
        streams: Limits of GET requests, which stay open as streams; None to use `limits`.
    """
    for route in routes:
        if isinstance(route, Route):
            route.app = _Limited(route.app, runs, limits, streams or limits, protocol)


class _Limited:
    """ASGI middleware that counts requests per caller, and refuses them while the server is stopping.

    It also requires a JSON content type, because a browser sends `text/plain` to another site without a preflight
    request, and not every SDK checks it. The arguments are those of `admit_requests`.
    """

    def __init__(
        self, app: ASGIApp, runs: Drainable, limits: RequestLimits, streams: RequestLimits, protocol: str
    ) -> None:
        self._app = app
        self._runs = runs
        self._limits = limits
        self._streams = streams
        self._protocol = protocol

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, and count the request as active until its last byte is sent.

        A GET counts against the limit of event streams, any other request against that of requests; a POST that may
        start a run counts per minute, too. Raises `ProblemError`, in this order: `stopping` while the server stops,
        `media_type` for a body that is not JSON, and `busy` if the caller has reached a limit.
        """
        if self._runs.draining:
            raise stopping()
        if not _is_json(Headers(scope=scope)):
            raise ProblemError(
                "media_type", f"An {self._protocol} request is JSON; send it with 'Content-Type: application/json'."
            )
        limits, starts = self._streams if scope["method"] == "GET" else self._limits, False
        if scope["method"] == "POST":
            # `BodyLimits` has read the whole body.
            body = (await receive()).get("body", b"")
            receive, starts = ReplayedBody(body, receive), _starts_run(path_of(scope), body)
        with ExitStack() as slot:
            slot.enter_context(limits.slot(admitted_caller(Request(scope)).name, starts=starts))

            async def send_with_slot(message: Message) -> None:
                """Send a message. Before the last one of the response, the request stops counting as active."""
                if message["type"] == "http.response.body" and not message.get("more_body", False):
                    # Before the last byte, after which the client may send its next request.
                    slot.close()
                await send(message)

            await self._app(scope, receive, send_with_slot)


def _starts_run(path: str, body: bytes) -> bool:
    """Return whether a request of A2A or MCP may start a run.

    Over HTTP+JSON the path decides: it is one of the two that send a message. Otherwise the JSON-RPC method in the body
    decides; True for a body that cannot be parsed, or is larger than 16 KiB.
    """
    if path.startswith(f"{REST_PATH}/"):
        return path.endswith(("/message:send", "/message:stream"))
    if len(body) > SMALL_BYTES:
        return True
    try:
        return json.loads(body).get("method") in _RUNS
    except (ValueError, AttributeError, RecursionError, TypeError):
        return True


def _is_json(headers: Headers) -> bool:
    """Return whether the headers declare a JSON body (`application/json` or `application/…+json`), or no body at all.

    There is no body without `transfer-encoding` and with a `content-length` that is 0 or missing.
    """
    if "transfer-encoding" not in headers and headers.get("content-length", "0") == "0":
        return True
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))
