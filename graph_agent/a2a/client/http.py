"""HTTP client for one remote agent, restricted to configured hosts and to a maximum response size."""

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
    """A remote agent's response, or a redirect to a host that is not configured, was refused."""


def origin_of(url: str | httpx.URL) -> Origin:
    """Return the origin of an address; all names of the loopback host are equal.

    Raises:
        ConfigError: If it is not an HTTP or HTTPS address.
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
    """Return a client that contacts these origins only, redirects included, and limits the response size.

    Proxies of the environment are ignored, since they would bypass the check of the host. The client has no timeout;
    the caller limits the time.

    Args:
        origins: The allowed origins.
        headers: Headers of every request.
        max_bytes: Maximum bytes of one response.
    """
    return httpx.AsyncClient(
        transport=_Guarded(frozenset(origins), max_bytes),
        # A compressed response could expand to a thousand times the counted bytes.
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
        self._inner = httpx.AsyncHTTPTransport(verify=_ssl_context() if encrypted else False, trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if origin_of(request.url) not in self._origins:
            raise RefusedReplyError(f"it redirects to another host, {request.url.host!r}, which was not configured")
        response = await self._inner.handle_async_request(request)
        length = response.headers.get("content-length", "")
        fault = ""
        if response.headers.get("content-encoding", "identity") != "identity":
            fault = "its response is compressed, which was not requested"
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
def _ssl_context() -> ssl.SSLContext:
    # Cached: loading the certificates takes longer than most delegations on loopback.
    return httpx.create_ssl_context(trust_env=False)
