"""Counts the requests of routes that are no FastAPI routes, such as those of protocol SDKs."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graph_agent._internal.signals import Drainable
from graph_agent.server.admission.gate import Limits, admitted_caller
from graph_agent.server.problems import ProblemError, stopping


def admit_requests(
    routes: Iterable[BaseRoute], runs: Drainable, limits: Limits, *, protocol: str, streams: Limits | None = None
) -> None:
    """Make the routes check each request, and count it as a request of its caller.

    Args:
        runs: Requests are refused while it drains.
        protocol: Name of the protocol, for the texts of errors.
        streams: Limits of GET requests, which are open as long as the client; None for `limits`.
    """
    for route in routes:
        if isinstance(route, Route):
            route.app = _Limited(route.app, runs, limits, streams or limits, protocol)


class _Limited:
    """ASGI middleware that counts requests per caller, and refuses them while the server stops.

    It also requires a JSON content type, which the SDKs may not: a browser sends `text/plain` to another site without a
    preflight request.
    """

    def __init__(self, app: ASGIApp, runs: Drainable, limits: Limits, streams: Limits, protocol: str) -> None:
        self._app = app
        self._runs = runs
        self._limits = limits
        self._streams = streams
        self._protocol = protocol

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._runs.draining:
            raise stopping()
        if not _is_json(Headers(scope=scope)):
            raise ProblemError(
                "media_type",
                f"An {self._protocol} request is JSON; send it with 'Content-Type: application/json'.",
            )
        limits = self._streams if scope["method"] == "GET" else self._limits
        with ExitStack() as slot:
            slot.enter_context(limits.slot(admitted_caller(Request(scope)).name))

            async def send_with_slot(message: Message) -> None:
                if message["type"] == "http.response.body" and not message.get("more_body", False):
                    # Before the last byte, after which the client may send its next request.
                    slot.close()
                await send(message)

            await self._app(scope, receive, send_with_slot)


def _is_json(headers: Headers) -> bool:
    """Return whether a request has a JSON body, or none."""
    if "transfer-encoding" not in headers and headers.get("content-length", "0") == "0":
        return True
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))
