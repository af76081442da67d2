"""Authorizes the client at servers that need OAuth, and stores the tokens in files.

The SDK's provider runs the protocol: discovery, registration, PKCE and refresh. This module stores the tokens and asks
the user. At a terminal it prints the address to open, and receives the redirect on 127.0.0.1. Elsewhere it raises an
error with the address, because a request must not wait for a user who may not be there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import httpx
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthMetadata, OAuthToken
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic.json_schema import SkipJsonSchema

from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base._internal.validation_text import CheckedModel, describe_fields
from graph_agent.base.errors import ConfigError
from graph_agent.integrations.mcp.messages import AuthorizationNeededError

TokenModel = TypeVar("TokenModel", bound=BaseModel)
logger = get_logger("graph_agent.mcp")

AUTHORIZATION_S = 300.0
"""Maximum seconds that a user may take to authorize the client."""
STORE = Path("~/.config/graph-agent/mcp-tokens")
"""Default folder of the token files."""
_PAGE = "<!doctype html><meta charset=utf-8><title>{0}</title><p>{0} You can close this window."
"""The page that a browser shows after the redirect."""


class OAuthSettings(CheckedModel):
    """Settings of OAuth for one server."""

    model_config = ConfigDict(json_schema_extra=describe_fields)
    _described_as = "oauth"

    scopes: tuple[str, ...] = ()
    """The requested scopes; empty for those that the server advertises."""
    client_id: str | None = None
    """Id of a client that is registered already; None to register one."""
    client_secret: SecretStr | None = None
    """Its secret; may refer to a variable."""
    store: Path = STORE
    """Folder of the tokens."""
    redirect_port: Annotated[int, Field(strict=True, ge=0, le=65_535)] = 0
    """Port of the redirect on 127.0.0.1; 0 for a free one, which is kept for a registered client."""
    on_url: SkipJsonSchema[Callable[[str], Awaitable[None]] | None] = None
    """Shows the address to a person; None for the terminal, if there is one."""

    @property
    def asks(self) -> bool:
        """Whether a user can be asked: by `on_url`, or at a terminal."""
        return self.on_url is not None or (sys.stdin.isatty() and sys.stderr.isatty())


class TokenFile:
    """The tokens of one client at one server, in a JSON file that only its owner can read.

    Args:
        folder: Folder of the file.
        server_url: URL of the server.
        client_id: The configured client; None for one that is registered automatically.
    """

    def __init__(self, folder: Path, server_url: str, client_id: str | None) -> None:
        name = hashlib.sha256(json.dumps([server_url, client_id]).encode()).hexdigest()[:32]
        self.path = folder.expanduser() / f"{name}.json"
        self._server_url = server_url

    def read(self) -> dict[str, Any]:
        """Return the stored values; empty if there is no file, or if it holds no JSON object.

        A file that cannot be read or is no JSON is logged as a warning.
        """
        try:
            stored = json.loads(self.path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            logger.warning("The MCP tokens in %s cannot be read: %s", self.path, type(error).__name__)
            return {}
        return stored if isinstance(stored, dict) else {}

    def write(self, **changes: Any) -> None:
        """Replace some values in the file, atomically: a concurrent reader gets either all old or all new ones.

        `changes` are the values by their key; others in the file remain, unless it cannot be read. A missing folder or
        file is created. Raises `OSError` if the file cannot be written.
        """
        # Read again, because another process may have written other values.
        values = {"server_url": self._server_url, **self.read(), **changes}
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # mkstemp makes a file of mode 0600.
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=".tokens")
        try:
            with os.fdopen(handle, "w") as file:
                json.dump(values, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise

    def version(self) -> int:
        """Return a number that changes when any process writes the file; 0 without a file."""
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0

    async def get_tokens(self) -> OAuthToken | None:
        """Return the stored tokens; None if there are none or they are invalid."""
        return _parsed(OAuthToken, self.read().get("tokens"))

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store tokens, and the time at which they expire."""
        expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        self.write(tokens=tokens.model_dump(mode="json", exclude_none=True), expires_at=expires_at)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the stored client registration; None if there is none or it is invalid."""
        return _parsed(OAuthClientInformationFull, self.read().get("client"))

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store the client's registration at the server."""
        self.write(client=client_info.model_dump(mode="json", exclude_none=True))


def _parsed(model: type[TokenModel], value: Any) -> TokenModel | None:
    """Return a stored value as a model; None if it is missing or invalid."""
    try:
        return None if value is None else model.model_validate(value)
    except ValidationError:
        return None


class FileOAuth(OAuthClientProvider):
    """The SDK's OAuth provider with a token file that several processes may share.

    Args:
        server: Name of the server, for messages.
        server_url: URL of the server.
        settings: The settings of OAuth.
    """

    def __init__(self, server: str, server_url: str, settings: OAuthSettings) -> None:
        self._name = server
        self._settings = settings
        self._file = TokenFile(settings.store, server_url, settings.client_id)
        self._version = -1
        self._server: asyncio.Server | None = None
        self._redirected: asyncio.Future[dict[str, str]]
        self._redirect = self._redirect_uri()
        metadata = OAuthClientMetadata(
            client_name="graph-agent",
            redirect_uris=[AnyUrl(self._redirect)],
            scope=" ".join(settings.scopes) or None,
            token_endpoint_auth_method="none" if settings.client_secret is None else "client_secret_post",
        )
        super().__init__(server_url, metadata, self._file, self._show, self._receive, AUTHORIZATION_S)

    @property
    def person_s(self) -> float:
        """Seconds that a user may take to authorize the client; 0 if no user can be asked."""
        return AUTHORIZATION_S if self._settings.asks else 0.0

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        """Authorize one request, after reading the tokens again if another process has changed them.

        Raises `AuthorizationNeededError` if the user must authorize the client and cannot be asked, refuses, or takes
        too long, and the SDK's `OAuthFlowError` if another step of the authorization fails.
        """
        # Refresh tokens can often be used once: the old one would fail after another process has refreshed it.
        if (version := self._file.version()) != self._version:
            self._initialized = False
            self._version = version
        # Driven by hand, because an async generator cannot delegate with `yield from`.
        flow = super().async_auth_flow(request)
        try:
            step = await flow.__anext__()
            while True:
                response = yield step
                step = await flow.asend(response)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()
            self._close()

    async def _initialize(self) -> None:
        """Read tokens, expiry, the server's metadata and the client from the file.

        Without a client in the file, that of the settings is used. Stored metadata that is invalid is ignored.
        """
        await super()._initialize()
        stored, context = self._file.read(), self.context
        context.token_expiry_time = stored.get("expires_at")
        # Without it, a refresh would go to the server instead of its authorization server.
        context.oauth_metadata = context.oauth_metadata or _parsed(OAuthMetadata, stored.get("metadata"))
        secret = self._settings.client_secret
        if context.client_info is None and self._settings.client_id is not None:
            context.client_info = OAuthClientInformationFull(
                client_id=self._settings.client_id,
                client_secret=None if secret is None else secret.get_secret_value(),
                redirect_uris=[AnyUrl(self._redirect)],
                token_endpoint_auth_method="none" if secret is None else "client_secret_post",
            )

    async def _show(self, url: str) -> None:
        """Show the address at which the user authorizes the client, and listen for the redirect.

        It is passed to `on_url` of the settings, or else written to standard error. The server's metadata is written to
        the file first. Raises `AuthorizationNeededError` if no user can be asked, and `OSError` if the file cannot be
        written or the port of the redirect is in use.
        """
        # Stored for later processes, which refresh tokens without a discovery.
        if self.context.oauth_metadata is not None:
            self._file.write(metadata=self.context.oauth_metadata.model_dump(mode="json", exclude_none=True))
        if not self._settings.asks:
            raise AuthorizationNeededError(
                "it needs authorization, and no person can be asked here. Start the agent once at a terminal, e.g. by "
                f"`graph-agent chat`, and open the address that it prints; the tokens are then in {self._file.path}. "
                f"The address begins with {url.partition('?')[0]}"
            )
        await self._listen()
        if self._settings.on_url is not None:
            await self._settings.on_url(url)
        else:
            sys.stderr.write(f"MCP server {self._name!r} needs authorization. Open this address:\n{url}\n")
            sys.stderr.flush()

    async def _listen(self) -> None:
        """Listen on the redirect's port; `_redirected` receives the query parameters of the redirect."""
        self._redirected = received = asyncio.get_running_loop().create_future()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            """Answer one request of a browser. If it is the redirect, its query parameters become the result of
            `_redirected`.
            """
            line = (await reader.readline()).decode(errors="replace").split(" ")
            target = urlsplit(line[1]) if len(line) > 1 else urlsplit("")
            values = {name: given[0] for name, given in parse_qs(target.query).items()}
            is_redirect = target.path == "/callback" and ("code" in values or "error" in values)
            text = "The client is authorized." if "code" in values else "The client is not authorized."
            page = _PAGE.format(text) if is_redirect else "Not found."
            status = "200 OK" if is_redirect else "404 Not Found"
            head = f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(page)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n{page}".encode())
            with suppress(ConnectionError):
                await writer.drain()
            writer.close()
            if is_redirect and not received.done():
                received.set_result(values)

        self._server = await asyncio.start_server(handle, "127.0.0.1", urlsplit(self._redirect).port or 0)

    async def _receive(self) -> tuple[str, str | None]:
        """Wait for the redirect, and return its code and state.

        Raises `AuthorizationNeededError` if it does not come in time, or is a refusal.
        """
        try:
            async with asyncio.timeout(AUTHORIZATION_S):
                values = await self._redirected
        except TimeoutError:
            raise AuthorizationNeededError(
                f"it was not authorized within {AUTHORIZATION_S:g} s; start again, and open the address"
            ) from None
        if "error" in values:
            raise AuthorizationNeededError(f"its authorization was refused: {values['error'][:200]}")
        return values["code"], values.get("state")

    def _redirect_uri(self) -> str:
        """Return the address of the redirect: that of the registered client, if the file has one, else one on
        127.0.0.1.

        Its port is that of the settings, or a free one if that is 0.
        """
        # A registered client is redirected to its registered address only.
        stored = _parsed(OAuthClientInformationFull, self._file.read().get("client"))
        if stored is not None and stored.redirect_uris:
            return str(stored.redirect_uris[0])
        port = self._settings.redirect_port
        if port == 0:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
        return f"http://127.0.0.1:{port}/callback"

    def _close(self) -> None:
        """Stop listening for the redirect."""
        if self._server is not None:
            self._server.close()
            self._server = None


def read_oauth(value: Mapping[str, Any] | bool) -> OAuthSettings:
    """Return the settings in a connection's key `oauth`: True for the defaults, or a mapping; empty values are ignored.

    Raises:
        ConfigError: They are invalid.
    """
    if value is True:
        return OAuthSettings()
    if not isinstance(value, Mapping):
        raise ConfigError(f"'oauth' must be true or a mapping such as {{'scopes': ['read']}}; got {value!r}.")
    return OAuthSettings(**{str(key): each for key, each in value.items() if each not in (None, "")})
