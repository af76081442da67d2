"""Web pages that reach for a server without keys: every page a person opens can send requests to their own machine."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection


def foreign_page(request: HTTPConnection, origins: Collection[str], public_url: str = "") -> str:
    """Why a request may come from a page that has no business here; empty where it does not.

    A page on another site names its origin. One whose name was made to lead to this machine (DNS rebinding) is of our
    own origin, and is known by the name in `Host`: one with a dot can be anybody's, an address or a bare name cannot.

    Args:
        request: The request.
        origins: Origins whose pages may call this server.
        public_url: Where the operator has clients reach this server; its host name is admitted. Empty for none.
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
        return "."  # no name that any page has


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
