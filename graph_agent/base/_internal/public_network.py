"""Sends HTTP requests to untrusted addresses, in the public network only.

A host name is resolved once, and the connection goes to the checked address, because a second resolution could return
another one (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from urllib.parse import urlsplit

import httpx

logger = logging.getLogger("graph_agent._internal.public_network")

_EMBEDDING = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "::/96",  # IPv4-compatible (RFC 4291)
            "::ffff:0:0/96",  # IPv4-mapped (RFC 4291)
            "::ffff:0:0:0/96",  # IPv4-translated (RFC 2765)
            "64:ff9b::/96",  # NAT64 (RFC 6052)
            "64:ff9b:1::/48",  # NAT64 of a site (RFC 8215)
            "2001::/32",  # Teredo (RFC 4380)
            "2002::/16",  # 6to4 (RFC 3056)
        ),
    )
)
"""IPv6 networks whose addresses contain an IPv4 address, which may be private."""
_ISATAP = (0x00005EFE, 0x02005EFE)
"""Upper half of the interface identifier in ISATAP addresses (RFC 5214)."""


class NotPublicError(httpx.ConnectError):
    """Raised for a host that is not on the public network, or cannot be resolved."""


def is_public(address: str) -> bool:
    """Whether a text is a public unicast IP address.

    False for other text, for special and site-local addresses, and for IPv6 addresses that contain an IPv4 address. A
    zone such as `%eth0` is ignored.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        embeds = any(found in network for network in _EMBEDDING)
        if embeds or (int(found) >> 32) & 0xFFFFFFFF in _ISATAP or found.is_site_local:
            return False
    return found.is_global and not (found.is_multicast or found.is_reserved or found.is_unspecified)


async def public_address(host: str, port: int) -> str:
    """Resolve a host and return the first of its IP addresses, to connect to.

    Raises:
        NotPublicError: The host cannot be resolved, or any of its addresses is not public.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NotPublicError(f"The host {host!r} cannot be resolved: {error}.") from None
    addresses = [str(entry[4][0]) for entry in found]
    if not addresses or not all(map(is_public, addresses)):
        raise NotPublicError(f"The host {host!r} is not on the public network; it has the addresses {addresses}.")
    return addresses[0]


async def is_public_url(url: str) -> bool:
    """Whether a URL is an http or https URL whose host is on the public network, by resolving the host.

    False, with a warning in the log, if the host is not or cannot be resolved; False for any other URL.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return False
    try:
        await public_address(parts.hostname, port)
    except NotPublicError as error:
        logger.warning("%s", error)
        return False
    return True


class PublicTransport(httpx.AsyncHTTPTransport):
    """HTTP transport that connects to public addresses only.

    Each request resolves its host once and checks the addresses.
    """

    def __init__(self) -> None:
        # Kept connections are keyed by address, so they would serve other host names of that address unchecked.
        super().__init__(limits=httpx.Limits(max_keepalive_connections=0))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request to a checked address of its host; redirects are not followed here.

        Raises:
            NotPublicError: The host cannot be resolved, or any of its addresses is not public.
            httpx.TransportError: The request fails.
        """
        host = request.url.host
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        address = await public_address(host, port)
        # The `Host` header keeps the name, and SNI makes TLS verify the certificate for that name.
        pinned = httpx.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )
        return await super().handle_async_request(pinned)
