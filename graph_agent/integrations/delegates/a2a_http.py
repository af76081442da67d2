"""Sends HTTP requests to one remote agent, only to configured hosts and with a maximum response size."""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import httpx
from a2a.client import A2ACardResolver
from a2a.types import AgentCard
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from pydantic import BaseModel, ConfigDict, model_validator

from graph_agent.base._internal import telemetry
from graph_agent.base._internal.text import excerpt
from graph_agent.base.errors import ConfigError, OperatorError

Origin = tuple[str, str, int]
"""Scheme, host and port of an address."""

_PORTS = {"http": 80, "https": 443}
"""Scheme → default port."""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names of the loopback host."""
_REDIRECTS = 3
"""Maximum redirects of one request."""


class RefusedReplyError(httpx.TransportError):
    """Raised for a request to another host, and for a response that is too large or compressed."""


def origin_of(url: str | httpx.URL) -> Origin:
    """Return the origin of an address: scheme, host in lower case, and port, by default that of the scheme.

    All names of the loopback host become `localhost`.

    Raises:
        ConfigError: It is not an HTTP or HTTPS address.
    """
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise ConfigError(f"{url!r} is no address: {error}; write e.g. 'http://127.0.0.1:9001'.") from None
    if parsed.scheme not in _PORTS or not parsed.host:
        raise ConfigError(f"{str(url)!r} is no address of an agent; write e.g. 'http://127.0.0.1:9001'.")
    # A card may name its own host by another of these names.
    host = "localhost" if parsed.host in _LOOPBACK else parsed.host.lower()
    return parsed.scheme, host, parsed.port or _PORTS[parsed.scheme]


def open_http(origins: Iterable[Origin], headers: Mapping[str, str], max_bytes: int) -> httpx.AsyncClient:
    """Return an HTTP client that contacts only the given origins, and limits the size of responses.

    Proxies of the environment are ignored, because they would bypass the check of the host. The client has no timeouts;
    the caller limits the time. It follows at most `_REDIRECTS` redirects. Requests raise `RefusedReplyError` for a
    response that is not allowed.

    Args:
        origins: Origins that may be contacted, also after a redirect.
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
    """A transport that refuses other origins than the given ones, and responses that are compressed or too large."""

    def __init__(self, origins: frozenset[Origin], max_bytes: int) -> None:
        self._origins = origins
        self._max_bytes = max_bytes
        encrypted = any(scheme == "https" for scheme, _, _ in origins)
        self._inner = httpx.AsyncHTTPTransport(verify=_ssl_context() if encrypted else False, trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request with the headers of the current trace, and return the response.

        The body of the response is limited to `max_bytes`.

        Raises:
            RefusedReplyError: The request goes to an origin that is not configured (a redirect does so, too), or the
                response is compressed or too large. A response without a length raises it while the body is read.
        """
        # Checked here, because a redirect is sent as a request of its own.
        if origin_of(request.url) not in self._origins:
            raise RefusedReplyError(f"it redirects to another host, {request.url.host!r}, which was not configured")
        if telemetry.observer is not None:
            trace_headers: dict[str, str] = {}
            telemetry.observer.inject(trace_headers)
            request.headers.update(trace_headers)
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
        """Close the connections."""
        await self._inner.aclose()


class _Bounded(httpx.AsyncByteStream):
    """The body of a response, which raises `RefusedReplyError` beyond a number of bytes."""

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
        """Close the response."""
        await self._stream.aclose()


def _too_large(max_bytes: int) -> str:
    """Return why a response is refused that is too large."""
    return f"its response is larger than {max_bytes:,} bytes"


@functools.cache
def _ssl_context() -> ssl.SSLContext:
    """Return the context for encrypted connections, with the certificates of the system's or httpx's bundle."""
    # Cached: loading the certificates takes longer than most delegations on loopback.
    return httpx.create_ssl_context(trust_env=False)


class A2AAuth(BaseModel):
    """Name of the environment variable with a remote agent's token or key; never the secret itself."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    bearer_env: str | None = None
    """Variable with a token, which is sent as `Authorization: Bearer …`."""
    api_key_env: str | None = None
    """Variable with a key, which is sent in `header`."""
    header: str = "X-API-Key"
    """Header for the key."""

    @model_validator(mode="after")
    def _check_one_variable(self) -> Self:
        """Raise `ValueError` unless exactly one variable is named."""
        if (self.bearer_env is None) == (self.api_key_env is None):
            raise ValueError("name one variable: 'bearer_env' for a token, or 'api_key_env' for a key")
        return self

    def headers(self) -> dict[str, str]:
        """Return the header with the secret: `Authorization`, or `header` for a key.

        Raises:
            OperatorError: The environment variable is not set.
        """
        if not (secret := self._secret()):
            raise OperatorError(f"the environment variable {self._name} is not set; it holds the secret for this agent")
        return {"Authorization": f"Bearer {secret}"} if self.bearer_env else {self.header: secret}

    def without_secret(self, value: Any) -> Any:
        """Return a JSON value with the secret in strings and keys replaced by `[secret]`; unchanged without a secret.

        An agent may echo the secret.
        """
        secret = self._secret()
        if not secret:
            return value
        if isinstance(value, str):
            return value.replace(secret, "[secret]")
        if isinstance(value, list):
            return [self.without_secret(item) for item in value]
        if isinstance(value, dict):
            return {self.without_secret(key): self.without_secret(item) for key, item in value.items()}
        return value

    @property
    def _name(self) -> str:
        """Name of the environment variable."""
        return self.bearer_env or self.api_key_env or ""

    def _secret(self) -> str:
        """The secret, stripped; empty if the variable is not set."""
        return os.environ.get(self._name, "").strip()


_DESCRIPTION_CHARS = 1_000
"""Maximum characters of a description for the model."""
_SKILLS, _SKILL_CHARS = 20, 200
"""Maximum skills, and characters of each, in a description for the model."""


async def read_card(http: httpx.AsyncClient, url: str, origins: Collection[Origin]) -> AgentCard:
    """Read an agent's card, and keep only those of its interfaces that are on the given origins.

    The address of the card is the well-known path below `url`, unless `url` ends with `.json`.

    Args:
        http: The client.
        url: The agent's address, or the address of its card if it ends with `.json`.
        origins: Origins that may be contacted.

    Raises:
        A2AClientError: The card cannot be read.
        OperatorError: No interface of the card is on one of the origins.
    """
    parsed = urlsplit(url)
    base, path = url, AGENT_CARD_WELL_KNOWN_PATH
    if parsed.path.endswith(".json"):
        base, path = urlunsplit((parsed.scheme, parsed.netloc, "", "", "")), parsed.path
    card = await A2ACardResolver(http, base, path).get_agent_card()
    urls = [interface.url for interface in card.supported_interfaces]
    kept = [interface for interface in card.supported_interfaces if _is_at(interface.url, origins)]
    if not kept:
        elsewhere = ", ".join(urls) or "no address"
        raise OperatorError(
            f"its card names {elsewhere}, which is not a configured host; "
            "correct the card, or allow that host with 'allowed_origins'"
        )
    # Only these remain, so that the client cannot choose another host.
    del card.supported_interfaces[:]
    card.supported_interfaces.extend(kept)
    return card


def describe_card(card: AgentCard) -> str:
    """Return a card's description and skills in one line for a model, shortened; empty if it has neither.

    The form is `DESCRIPTION Its skills: NAME: DESCRIPTION; …`.
    """
    description = _line(card.description, _DESCRIPTION_CHARS)
    skills = [_line(f"{each.name}: {each.description}", _SKILL_CHARS).rstrip(".") for each in card.skills[:_SKILLS]]
    return " ".join([description, f"Its skills: {'; '.join(skills)}." if skills else ""]).strip()


def _line(text: str, max_chars: int) -> str:
    """Return a text in one line, cut to `max_chars` characters; a cut text also ends with `…`."""
    return excerpt(" ".join(text.split()), max_chars)


def _is_at(url: str, origins: Collection[Origin]) -> bool:
    """Whether an address is on one of the origins; False for an invalid address."""
    try:
        return origin_of(url) in origins
    except ConfigError:
        return False
