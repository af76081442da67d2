"""Refuses requests that web pages of other origins send to a server without keys."""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from graph_agent.interfaces.server.problems import ProblemError

logger = logging.getLogger("graph_agent.server.admission.origins")

_PUBLIC = ("/health", "/ready", "/.well-known/")
"""Prefixes of the paths that pages of every origin may request."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
"""Scheme → port of an origin that names none."""
_SCHEMES = {"ws": "http", "wss": "https"}
"""Scheme of a WebSocket → scheme of the page that opens it."""
_ADDABLE = re.compile(r"[a-z][a-z0-9+.-]{0,50}://[a-z0-9._:\[\]-]{1,300}")
"""Pattern of origins for which the error suggests an entry of `cors_origins`."""
_LOGGED = 100
"""Maximum number of refused origins that are logged, because clients may send any number."""
_SHOWN = 200
"""Maximum characters of a refused origin in a message."""


class OriginCheck:
    """Checks the origin and the host name of requests to a server without keys.

    A browser sends `Origin` with each request that can change something, and with each WebSocket. Pages of every other
    origin are refused, also those on another port of this machine, because any local program may serve one. A page
    whose host name was rebound to this machine (DNS rebinding) has the server's own origin, and is detected by `Host`:
    a name with a dot can belong to anyone, an address or a name without a dot cannot.

    Args:
        origins: Origins whose pages may call this server; `*` permits all.
        public_url: URL of the server for clients, whose host name and origin are permitted; empty if there is none.
    """

    def __init__(self, origins: Collection[str], public_url: str = "") -> None:
        self._origins = origins
        self._public_host = _name(public_url)
        self._public_origin = _origin(public_url)
        self._logged: set[str] = set()

    def check(self, request: HTTPConnection, path: str) -> None:
        """Raise `ProblemError` (`origin`) if a request may come from a page that may not call this server.

        The first rule that applies decides:

        - A request with a permitted `Origin` passes; `*` permits every origin.
        - A request is refused unless its host is an IP address, a name without a dot or below `.localhost`, or the host
          of `public_url`.
        - Health checks and the agent card pass, with any origin.
        - A request without an `Origin` is refused if the browser declares that a page of another origin sent it.
        - A request whose `Origin` is not the server's own is refused, and the origin is logged once (at most 100
          origins). Any other request passes.

        Args:
            request: The request, or the handshake of a WebSocket.
            path: The request's path without the mount path of the application.
        """
        origin = request.headers.get("origin")
        if origin is not None and (origin in self._origins or "*" in self._origins):
            return
        host = _name(f"//{request.headers.get('host', '')}")
        if not _is_bare(host) and host != self._public_host:
            raise ProblemError(
                "origin",
                f"Without API keys this server answers to an address, a bare name or the host of public_url only, not "
                f"to {host!r}; set keys or public_url.",
            )
        # They show nothing that a page may not know.
        if path.startswith(_PUBLIC):
            return
        if origin is None and _is_of_another_page(request):
            raise ProblemError("origin", "A page of another origin sent this request without its Origin.")
        if origin is not None and not self._is_own(origin, request):
            raise ProblemError("origin", self._refusal(origin))

    def _is_own(self, origin: str, request: HTTPConnection) -> bool:
        """Return whether an origin is the server's own: that of its public URL, or of the scheme and host that the
        request names.

        If the origin names a port, any scheme is accepted with the request's host. False for a malformed origin.
        """
        given, scheme, host = _origin(origin), request.scope.get("scheme", "http"), request.headers.get("host", "")
        if given is None:
            return False
        if given in (self._public_origin, _origin(f"{_SCHEMES.get(scheme, scheme)}://{host}")):
            return True
        # Behind a proxy that ends TLS, the request has another scheme. If the port is named, it has one scheme only.
        return re.search(r":[0-9]+$", origin) is not None and given == _origin(f"{given[0]}://{host}")

    def _refusal(self, origin: str) -> str:
        """Return the message with which an origin is refused. It explains how to permit the origin.

        The message is also logged as a warning the first time, for at most 100 origins of a process.
        """
        text = f"Pages of the origin {origin[:_SHOWN]!r} may not call this server, which has no API keys."
        if _ADDABLE.fullmatch(origin):
            text += f" To permit them, add the origin to cors_origins: --set 'cors_origins=[\"{origin}\"]'."
        else:
            # A file, or the sandboxed frame of any page.
            text += " Open the page over HTTP, and add its origin to cors_origins."
        # Browsers do not show the response to the page's author.
        if origin not in self._logged and len(self._logged) < _LOGGED:
            self._logged.add(origin)
            logger.warning("%s", text)
        return text


def _is_of_another_page(request: HTTPConnection) -> bool:
    """Return whether the browser's `Sec-Fetch` headers declare that a page of another origin sent the request.

    Following a link does not count. False without these headers.
    """
    headers = request.headers
    return headers.get("sec-fetch-site") in ("same-site", "cross-site") and headers.get("sec-fetch-mode") != "navigate"


def _origin(url: str) -> tuple[str, str, int | None] | None:
    """Return the scheme, host and port of a URL, e.g. `("https", "a.com", 443)`; None if it has no host or is
    malformed.

    A missing port is the default of `http` and `https`, and None for other schemes.
    """
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
        return (parts.scheme, host, parts.port or _DEFAULT_PORTS.get(parts.scheme)) if host else None
    except ValueError:
        return None


def _name(url: str) -> str:
    """Return the host name of a URL, without a dot at its end; empty if the URL has none, and `.` if it is
    malformed.
    """
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return "."  # a name that no page can have


def _is_bare(host: str) -> bool:
    """Return whether a host name cannot belong to a foreign site: it has no dot, ends in `.localhost`, or is an IP
    address.
    """
    if "." not in host or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
