"""Clients that stop reading, partial requests, and cross-origin requests."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from graph_agent.server import ApiKey, ServerSettings, create_app, of_file
from tests.interfaces.server.process import ROOT, Served, serving
from tests.support.chat_client import CHAT, answer, body, chat, wait_for_event

PAGE = "https://my.page"
ASKS = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
KEY = ApiKey(name="anna", key=SecretStr("anna-0123456789abcdef"))


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    options = ["--set", "send_timeout_s=0.5", "--set", "body_timeout_s=1", "--set", "cors_origins=[https://my.page]"]
    with serving(tmp_path_factory.mktemp("impatient"), *options) as server:
        yield server


@contextmanager
def sending(server: Served, content: bytes, *headers: str, length: int | None = None) -> Iterator[socket.socket]:
    """A connection on which a chat request was sent, and nothing is read."""
    url = httpx.URL(server.url)
    head = [f"POST {CHAT} HTTP/1.1", "host: localhost", "content-type: application/json", *headers]
    with socket.socket() as connection:
        connection.settimeout(60)
        connection.connect((url.host, url.port))
        connection.sendall("\r\n".join([*head, f"content-length: {length or len(content)}", "", ""]).encode() + content)
        yield connection


def ended(http: httpx.Client, session: str) -> str:
    """A session's status, once its run is over."""
    while (status := http.get(f"/sessions/{session}").json().get("status", "CREATED")) in ("CREATED", "RUNNING"):
        time.sleep(0.01)
    return str(status)


def test_a_stalled_reader_is_disconnected_and_its_session_stays_valid(impatient: Served) -> None:
    content = json.dumps(body("!endless", stream=True)).encode()
    with impatient.http() as http, sending(impatient, content, "x-session-id: slow") as connection:
        status = ended(http, "slow")
        tail = b""
        while piece := _read(connection):
            tail = (tail + piece)[-1000:]
        went_on = chat(http, "slow", "hello")
        under_way = "graph_agent_requests_under_way 0.0" in http.get("/metrics").text

    assert (status, b"[DONE]" in tail, under_way) == ("ABORTED", False, True)
    assert answer(went_on) == "You said: !endless / hello"


def _read(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("how", [socket.SHUT_WR, socket.SHUT_RDWR], ids=["half", "whole"])
def test_a_request_that_ends_in_its_middle_begins_nothing(impatient: Served, how: int) -> None:
    content = json.dumps(body("hello")).encode()
    session = f"middle-{how}"
    with impatient.http() as http:
        with sending(impatient, content[:20], f"x-session-id: {session}", length=len(content)) as connection:
            connection.shutdown(how)
            while how == socket.SHUT_WR and _read(connection):
                pass
        listed = http.get("/memory/sessions").json()["sessions"]

    assert session not in listed


def test_a_client_that_closes_its_half_behind_the_request_is_gone(impatient: Served, tmp_path: Path) -> None:
    content = json.dumps(body(f'!call wait_for {{"file": "{tmp_path / "never"}"}}')).encode()
    with impatient.http() as http, sending(impatient, content, "x-session-id: halved") as connection:
        wait_for_event(http, "halved", "tool_call")
        connection.shutdown(socket.SHUT_WR)
        status = ended(http, "halved")

    assert status == "ABORTED"


def allowed(response: httpx.Response) -> tuple[int, str | None]:
    return response.status_code, response.headers.get("access-control-allow-origin")


def test_no_page_may_read_answers_unless_its_origin_is_configured(served: Served, impatient: Served) -> None:
    found = []
    for server in (served, impatient):
        with server.http(headers={"origin": PAGE}) as http:
            found.append([allowed(http.options(CHAT, headers=ASKS)), allowed(http.post(CHAT, json=body("hi")))])

    assert found == [[(403, None), (403, None)], [(200, PAGE), (200, PAGE)]]


def test_another_origin_is_refused_where_one_is_configured(impatient: Served) -> None:
    with impatient.http(headers={"origin": "https://evil.example"}) as http:
        found = [allowed(http.options(CHAT, headers=ASKS)), allowed(http.post(CHAT, json=body("hi")))]

    assert found == [(400, None), (403, None)]


async def test_a_cross_origin_request_without_a_key_receives_the_reason() -> None:
    settings = ServerSettings(keys=(KEY,), cors_origins=(PAGE,))
    transport = httpx.ASGITransport(create_app(of_file(ROOT / "examples/hotel/agent.yaml"), settings=settings))
    async with httpx.AsyncClient(transport=transport, base_url="http://here", headers={"origin": PAGE}) as http:
        asked = await http.options(CHAT, headers=ASKS)
        refused = await http.post(CHAT, json=body("hi"))

    assert [allowed(asked), allowed(refused)] == [(200, PAGE), (401, PAGE)]
    assert asked.headers["access-control-allow-headers"] == "authorization,content-type"
