"""Protection of a server without keys from web pages, which can send requests to their visitor's machine."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection


def origin_fault(request: HTTPConnection, origins: Collection[str], public_url: str = "") -> str:
    """Return why a request may come from a page without permission; empty if it is permitted.

    A page of another site sends its `Origin`. A page whose host name was rebound to this machine (DNS rebinding) has
    the server's own origin, and is detected by `Host`: a name with a dot can belong to anyone, an address or a bare
    name cannot.

    Args:
        request: The request.
        origins: Origins whose pages may call this server.
        public_url: The server's URL for clients; its host name is permitted. Empty for none.
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
