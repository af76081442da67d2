"""An MCP server over HTTP with an authorization server of its own, built on the SDK's. Prints `PORT <n>`.

Every visitor of the authorization page is authorized at once. Access tokens are valid for `TOKEN_S` seconds (3,600);
each line of `EFFECTS_FILE` is a step: `register`, `authorize`, `token`, `refresh`.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import sys
import time
from pathlib import Path

import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.fastmcp import FastMCP
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl


def note(line: str) -> None:
    with Path(os.environ["EFFECTS_FILE"]).open("a") as file:
        file.write(line + "\n")


class Provider:
    """Keeps everything in memory."""

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refreshes: dict[str, RefreshToken] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        note("register")
        assert client_info.client_id is not None
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        note("authorize")
        code = secrets.token_urlsafe(32)
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 300,
            client_id=str(client.client_id),
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        note("token")
        del self.codes[authorization_code.code]
        return self._issue(str(client.client_id), authorization_code.scopes)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        return self.refreshes.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        note("refresh")
        del self.refreshes[refresh_token.token]
        return self._issue(str(client.client_id), scopes)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.access.pop(token.token, None)

    def _issue(self, client_id: str, scopes: list[str]) -> OAuthToken:
        seconds = int(os.environ.get("TOKEN_S", "3600"))
        access, refresh = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        expires_at = int(time.time()) + seconds
        self.access[access] = AccessToken(
            token=access, client_id=client_id, scopes=scopes, expires_at=expires_at, resource=self.resource
        )
        self.refreshes[refresh] = RefreshToken(token=refresh, client_id=client_id, scopes=scopes)
        return OAuthToken(access_token=access, expires_in=seconds, refresh_token=refresh, scope=" ".join(scopes))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport")
    parser.add_argument("--port", type=int, default=0)
    listening = socket.create_server(("127.0.0.1", parser.parse_args().port))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    settings = AuthSettings(
        issuer_url=AnyHttpUrl(url),
        resource_server_url=AnyHttpUrl(f"{url}/mcp"),
        required_scopes=["rooms"],
        validate_token_resource=True,
        client_registration_options=ClientRegistrationOptions(
            enabled=True, valid_scopes=["rooms"], default_scopes=["rooms"]
        ),
    )
    server = FastMCP("oauth", auth_server_provider=Provider(f"{url}/mcp"), auth=settings, log_level="WARNING")

    @server.tool(structured_output=False)
    def rooms() -> str:
        """List the rooms."""
        return "7, 8"

    sys.stdout.write(f"PORT {listening.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="warning")).run([listening])


if __name__ == "__main__":
    main()
