"""Requests that web pages of other origins send to a server without keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from graph_agent.interfaces.server.app import GUARDED
from graph_agent.server import ApiKey, ServerSettings, create_app, of_file
from tests.interfaces.server.process import ROOT, Served, serving
from tests.support.chat_client import CHAT, body

LISTED = "http://localhost:3000"
OTHER_PORT = "http://127.0.0.1:5173"
PUBLIC = ["/health", "/ready", "/.well-known/agent-card.json"]
PATHS = [
    *(path.replace("*", "x") for path in GUARDED if path not in PUBLIC),
    CHAT,
    "/v1/responses",
    "/v1/messages",
    "/v1/conversations",
    "/sessions/s/abort",
    "/memory/sessions/s/events",
    "/a2a/rest/message:send",
]


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    options = ["--set", f"cors_origins=[{LISTED}]", "--set", "public_url=https://agents.example"]
    with serving(tmp_path_factory.mktemp("listing"), *options) as server:
        yield server


def socket(server: Served, **headers: str) -> ClientConnection:
    url = server.url.replace("http", "ws", 1)
    return connect(f"{url}/v1/responses", additional_headers=headers, proxy=None, open_timeout=60)


def refused_socket(server: Served, **headers: str) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as caught:
        socket(server, **headers)
    return caught.value.response.status_code, (caught.value.response.body or b"").decode()


def reason(answer: httpx.Response) -> str:
    """The message of a refusal, in the format of any API."""
    error = answer.json()["error"]
    return str(error if isinstance(error, str) else error["message"])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_page_of_another_local_port_reaches_no_route(served: Served, method: str, path: str) -> None:
    with served.http(headers={"origin": OTHER_PORT}) as http:
        answer = http.request(method, path, json={} if method == "POST" else None)

    assert (answer.status_code, f'cors_origins=["{OTHER_PORT}"]' in reason(answer)) == (403, True)


@pytest.mark.parametrize("path", PUBLIC)
@pytest.mark.parametrize("origin", [OTHER_PORT, "https://page.example", "null"])
def test_health_readiness_and_the_card_are_for_pages_of_every_origin(served: Served, path: str, origin: str) -> None:
    with served.http(headers={"origin": origin}) as http:
        assert http.get(path).status_code == 200


def test_a_page_of_another_local_port_cannot_approve_a_call_over_the_websocket(served: Served) -> None:
    status, text = refused_socket(served, origin=OTHER_PORT)

    assert (status, f'cors_origins=["{OTHER_PORT}"]' in json.loads(text)["error"]["message"]) == (403, True)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://localhost:8000", "localhost:8000"),
        ("http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("http://localhost", "localhost"),
        ("http://localhost", "localhost:80"),
        ("http://box:9000", "box:9000"),
        ("https://localhost:8443", "localhost:8443"),  # a proxy ends TLS
        ("https://agents.example", "agents.example"),  # the public URL
        (LISTED, "localhost:8000"),
    ],
)
def test_a_page_of_the_same_origin_or_a_listed_one_is_answered(listing: Served, origin: str, host: str) -> None:
    with listing.http(headers={"origin": origin, "host": host}) as http:
        statuses = [http.post("/sessions/s/abort").status_code, http.post(CHAT, json=body("hi")).status_code]
    with socket(listing, origin=origin) if origin == LISTED else listing.http() as opened:
        assert (statuses, bool(opened)) == ([404, 200], True)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://localhost:8001", "localhost:8000"),
        ("http://localhost", "localhost:8000"),
        ("http://localhost:8000", "127.0.0.1:8000"),
        ("http://127.0.0.2:8000", "127.0.0.1:8000"),
        ("http://a.localhost:8000", "localhost:8000"),
        ("https://localhost", "localhost"),
        ("http://box:9001", "box:9000"),
        ("https://agents.example:444", "agents.example"),
        ("http://localhost:3001", "localhost:8000"),
        (f"{LISTED}.evil.example", "localhost:8000"),
        ("null", "localhost:8000"),
        ("", "localhost:8000"),
        ("file://", "localhost:8000"),
        ("http://[", "localhost:8000"),
        ("http://localhost:x", "localhost:8000"),
        ("chrome-extension://abcdefghijklmnop", "localhost:8000"),
    ],
)
def test_a_page_of_any_other_origin_is_refused(listing: Served, origin: str, host: str) -> None:
    with listing.http(headers={"origin": origin, "host": host}) as http:
        answers = [http.post("/sessions/s/abort"), http.post(CHAT, json=body("hi"))]

    assert [(each.status_code, repr(origin) in reason(each)) for each in answers] == [(403, True)] * 2


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        ("same-site", "no-cors", 403),
        ("cross-site", "no-cors", 403),
        ("same-origin", "cors", 404),
        ("none", "navigate", 404),
        ("same-site", "navigate", 404),
    ],
)
def test_what_a_page_embeds_is_refused_without_an_origin_too(served: Served, site: str, mode: str, status: int) -> None:
    with served.http(headers={"sec-fetch-site": site, "sec-fetch-mode": mode}) as http:
        assert http.get("/memory/sessions/none/events", params={"follow": "true"}).status_code == status


def test_the_log_names_each_refused_origin_once(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.http(headers={"origin": OTHER_PORT}) as http:
        statuses = [http.post("/sessions/s/abort").status_code for _ in range(3)]
        log = server.log.read_text()

    assert (statuses, log.count(f'cors_origins=["{OTHER_PORT}"]')) == ([403] * 3, 1)


async def test_a_server_with_keys_admits_by_key_alone() -> None:
    keys = (ApiKey(name="anna", key=SecretStr("anna-0123456789abcdef")),)
    transport = httpx.ASGITransport(
        create_app(of_file(ROOT / "examples/hotel/agent.yaml"), settings=ServerSettings(keys=keys))
    )
    headers: dict[str, Any] = {"origin": OTHER_PORT, "x-api-key": "anna-0123456789abcdef"}
    async with httpx.AsyncClient(transport=transport, base_url="http://here", headers=headers) as http:
        assert (await http.get("/docs")).status_code == 200
