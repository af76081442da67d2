"""The client authorizes itself at a real authorization server, and keeps its tokens."""

from __future__ import annotations

import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from graph_agent.errors import ConfigError
from graph_agent.mcp import open_mcp_tools
from tests.support.mcp_servers.running import HttpServer, lines, text

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


@pytest_asyncio.fixture(loop_scope="module")
async def server(tmp_path: Path) -> AsyncIterator[HttpServer]:
    async with HttpServer(tmp_path, PROGRAM="oauth_server") as server:
        yield server


def connected(server: HttpServer, store: Path, **oauth: Any) -> dict[str, Any]:
    return {"hotel": server.connection(oauth={"store": str(store), **oauth})}


def token_file(store: Path) -> Path:
    (file,) = store.iterdir()
    return file


def modes(store: Path) -> list[int]:
    return [stat.S_IMODE(path.stat().st_mode) for path in (store, token_file(store))]


async def visit(url: str) -> None:
    """Open an address as a browser would, with its redirects."""
    async with httpx.AsyncClient(follow_redirects=True) as browser:
        page = await browser.get(url)
    assert "The client is authorized." in page.text


async def test_a_person_authorizes_once_and_later_processes_use_the_tokens(
    server: HttpServer, store: Path, tmp_path: Path
) -> None:
    async with open_mcp_tools(connected(server, store, on_url=visit)) as tools:
        assert await text(tools, "rooms") == "7, 8"
    # No terminal and no `on_url`: a new flow would fail.
    async with open_mcp_tools(connected(server, store)) as tools:
        assert await text(tools, "rooms") == "7, 8"
    assert modes(store) == [0o700, 0o600]
    assert lines(tmp_path, "effects") == ["register", "authorize", "token"]


async def test_an_expired_token_is_refreshed_in_another_process(
    server: HttpServer, store: Path, tmp_path: Path
) -> None:
    async with open_mcp_tools(connected(server, store, on_url=visit)) as tools:
        assert await text(tools, "rooms") == "7, 8"
    file = token_file(store)
    file.write_text(json.dumps({**json.loads(file.read_text()), "expires_at": 1.0}))
    async with open_mcp_tools(connected(server, store)) as tools:
        assert await text(tools, "rooms") == "7, 8"
    assert lines(tmp_path, "effects") == ["register", "authorize", "token", "refresh"]


async def test_without_a_person_the_error_contains_the_way_to_authorize(server: HttpServer, store: Path) -> None:
    async with open_mcp_tools(connected(server, store)) as tools:
        failed = tools.failed["hotel"]
    assert "it needs authorization, and no person can be asked here" in failed
    assert f"{server.connection()['url'].removesuffix('/mcp')}/authorize" in failed


async def test_a_refusal_of_the_person_is_the_servers_error(server: HttpServer, store: Path) -> None:
    async def refuse(url: str) -> None:
        redirect = httpx.URL(url).params["redirect_uri"]
        async with httpx.AsyncClient() as browser:
            await browser.get(f"{redirect}?error=access_denied&state={httpx.URL(url).params['state']}")

    async with open_mcp_tools(connected(server, store, on_url=refuse)) as tools:
        assert "its authorization was refused: access_denied" in tools.failed["hotel"]


@pytest.mark.parametrize(
    ("oauth", "fault"),
    [
        ("yes", "'oauth' must be true or a mapping"),
        ({"scope": "a"}, "MCP server 'hotel': oauth: unknown field 'scope'; known: .* Did you mean 'scopes'"),
        ({"scopes": "a"}, r"oauth: scopes='a': .* Write it as a list: \['a'\]."),
        ({"redirect_port": "80"}, "oauth: redirect_port='80': Input should be a valid integer."),
        ({"client_id": 7}, "oauth: client_id=7: Input should be a valid string."),
        ({"client_secret": 7}, "oauth: client_secret: Input should be a valid string."),
    ],
)
async def test_invalid_settings_are_refused(oauth: Any, fault: str) -> None:
    connection = {"transport": "http", "url": "http://127.0.0.1:9/mcp", "oauth": oauth}
    with pytest.raises(ConfigError, match=fault):
        async with open_mcp_tools({"hotel": connection}):
            pass
