"""The way to one remote agent: only to the hosts that were configured, and never more bytes than agreed."""

from __future__ import annotations

import functools
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping

import httpx

from graph_agent.errors import ConfigError

Origin = tuple[str, str, int]
"""Scheme, host and port."""

_PORTS = {"http": 80, "https": 443}
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_REDIRECTS = 3


class RefusedReplyError(httpx.TransportError):
    """What a remote agent sent, or where it wanted to send us, is refused."""


def origin_of(url: str | httpx.URL) -> Origin:
    """Where an address leads; the names of the loopback host count as one.

    Raises:
        ConfigError: When it is no address of HTTP or HTTPS.
    """
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise ConfigError(f"{url!r} is no address: {error}; write e.g. 'http://127.0.0.1:9001'.") from None
    if parsed.scheme not in _PORTS or not parsed.host:
        raise ConfigError(f"{str(url)!r} is no address of an agent; write e.g. 'http://127.0.0.1:9001'.")
    host = "localhost" if parsed.host in _LOOPBACK else parsed.host.lower()
    return parsed.scheme, host, parsed.port or _PORTS[parsed.scheme]


def open_http(origins: Iterable[Origin], headers: Mapping[str, str], max_bytes: int) -> httpx.AsyncClient:
    """A client that goes to these origins only, follows no redirect away from them, and reads `max_bytes` at most.

    Proxies of the environment are not used: they would stand between the check and the host. How long a reply may take
    is for the caller to bound.

    Args:
        origins: Where it may go.
        headers: Sent with every request.
        max_bytes: Bytes of one response.
    """
    return httpx.AsyncClient(
        transport=_Guarded(frozenset(origins), max_bytes),
        # A compressed reply could be a thousand times what was counted.
        headers={**headers, "accept-encoding": "identity"},
        timeout=None,
        follow_redirects=True,
        max_redirects=_REDIRECTS,
        trust_env=False,
    )


class _Guarded(httpx.AsyncBaseTransport):
    def __init__(self, origins: frozenset[Origin], max_bytes: int) -> None:
        self._origins = origins
        self._max_bytes = max_bytes
        encrypted = any(scheme == "https" for scheme, _, _ in origins)
        self._inner = httpx.AsyncHTTPTransport(verify=_trusted() if encrypted else False, trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if origin_of(request.url) not in self._origins:
            raise RefusedReplyError(f"it leads to another host, {request.url.host!r}, which was not configured")
        response = await self._inner.handle_async_request(request)
        length = response.headers.get("content-length", "")
        fault = ""
        if response.headers.get("content-encoding", "identity") != "identity":
            fault = "its response is compressed, though that was not asked for"
        elif length.isdigit() and int(length) > self._max_bytes:
            fault = _too_large(self._max_bytes)
        if fault:
            await response.aclose()
            raise RefusedReplyError(fault)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=_Bounded(response.stream, self._max_bytes),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        async for chunk in self._stream:
            read += len(chunk)
            if read > self._max_bytes:
                raise RefusedReplyError(_too_large(self._max_bytes))
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _too_large(max_bytes: int) -> str:
    return f"its response is larger than {max_bytes:,} bytes"


@functools.cache
def _trusted() -> ssl.SSLContext:
    # Reading the certificates takes longer than most delegations on loopback.
    return httpx.create_ssl_context(trust_env=False)
