"""Attempts to bypass admission: cross-origin requests, other paths, partial requests and other routes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr

from graph_agent.errors import ConfigError
from graph_agent.interfaces.server.metrics import Metrics
from graph_agent.server import ApiKey, ServerSettings, create_app, of_file, read_keys
from tests.interfaces.server.process import ROOT, Served, serving

KEY = "anna-0123456789abcdef"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    options = ["--set", "body_timeout_s=1", "--set", "requests_per_minute=1", "--set", "cors_origins=[https://my.page]"]
    with serving(tmp_path_factory.mktemp("small"), *options) as server:
        yield server


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 404),
        ({"origin": "http://localhost:8000", "host": "localhost:8000"}, 404),
        ({"origin": "http://localhost:3000"}, 403),
        ({"origin": "https://my.page"}, 404),
        ({"host": "graph-agent:8000"}, 404),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://[", "host": "["}, 403),
        ({"host": "evil.example:8000"}, 403),
    ],
)
def test_cross_origin_requests_without_keys_reach_no_session(
    small: Served, headers: dict[str, str], status: int
) -> None:
    with small.http(headers=headers) as http:
        assert http.post("/sessions/s/abort").status_code == status


def test_half_a_request_is_not_waited_for_on_a_connection_in_use_either(small: Served) -> None:
    url = httpx.URL(small.url)
    with socket.create_connection((url.host, url.port), timeout=30) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        response = b""
        while b"ok" not in response:
            response += connection.recv(1000)
        connection.sendall(b"GET /health HT")
        rest = b""
        while more := connection.recv(1000):
            rest += more

    assert rest.split(b"\r\n")[0] == b"HTTP/1.1 408 Request Timeout"


def test_bodies_are_bounded_while_read_and_unauthenticated_ones_are_not_read(tmp_path: Path) -> None:
    def half(connection: socket.socket, path: str) -> None:
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY if path != '/health' else ''}\r\n"
        connection.sendall(f"{head}content-type: application/json\r\ncontent-length: 14\r\n\r\n{{".encode())

    def status(connection: socket.socket) -> bytes:
        return connection.recv(1000).split()[1]

    environment = {"GRAPH_AGENT_API_KEYS": f"anna:{KEY}"}
    with serving(tmp_path, "--set", "concurrent_requests=1", environment=environment) as server:
        url = httpx.URL(server.url)
        address = (url.host, url.port)
        with (
            socket.create_connection(address, timeout=60) as one,
            socket.create_connection(address, timeout=60) as strangers,
            server.http(headers={"x-api-key": KEY}) as http,
        ):
            half(strangers, "/health")
            stranger = status(strangers)
            half(one, "/sessions/none/steer")
            until = time.monotonic() + 30
            while (other := http.post("/sessions/none/abort").status_code) == 404 and time.monotonic() < until:
                time.sleep(0.01)
            health = http.get("/health").status_code
            one.sendall(b'"text": "hi"}')
            first = status(one)

    assert (stranger, other, health, first) == (b"405", 429, 200, b"404")


def test_resuming_and_counting_tokens_count_as_requests(small: Served) -> None:
    counted = {"model": "parrot", "messages": [{"role": "user", "content": "hi"}]}
    with small.http() as http:
        answers = [http.post("/sessions/none/resume") for _ in range(2)]
        answers.append(http.post("/v1/messages/count_tokens", json=counted))

    assert [answer.status_code for answer in answers] == [404, 429, 429]


async def test_admission_holds_wherever_the_application_is_mounted() -> None:
    keys = (ApiKey(name="anna", key=SecretStr(KEY)),)
    inner = create_app(of_file(ROOT / "examples/hotel/agent.yaml"), settings=ServerSettings(keys=keys))
    outer = FastAPI()
    outer.mount("/agent", inner)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url="http://here") as http:
        answers = [await http.get(f"/agent{path}") for path in ("/v1/models", "/metrics", "/memory/sessions")]

    assert [answer.status_code for answer in answers] == [401] * 3


def test_two_names_for_one_key_are_refused() -> None:
    with pytest.raises(ConfigError, match="two names have one key"):
        read_keys(environment={"GRAPH_AGENT_API_KEYS": f"anna:{KEY},bert:{KEY}"})


@pytest.mark.parametrize(("kind", "counts"), [("auth", True), ("context_overflow", False), ("response_format", False)])
def test_no_callers_request_alone_makes_the_model_count_as_down(kind: str, counts: bool) -> None:
    event: dict[str, Any] = {"type": "error", "kind": kind, "ts": "2026-01-01T00:00:00+00:00"}
    metrics = Metrics()

    metrics.count(event, {})

    assert (metrics.last_model_error is not None) == counts


@pytest.mark.parametrize(
    ("keys", "optional"), [((), [{}]), ((ApiKey(name="anna", key=SecretStr(KEY)),), [])], ids=["open", "keys"]
)
def test_the_openapi_declares_required_keys(keys: tuple[ApiKey, ...], optional: list[Any]) -> None:
    described = create_app(of_file(ROOT / "examples/hotel/agent.yaml"), settings=ServerSettings(keys=keys)).openapi()
    open_to_all = [path for path, one in described["paths"].items() if one.get("get", {}).get("security") == []]

    assert (described["components"]["securitySchemes"], described["security"], open_to_all) == (
        {
            "bearer": {"type": "http", "scheme": "bearer"},
            "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        },
        [{"bearer": []}, {"x-api-key": []}, *optional],
        ["/health", "/ready"],
    )
