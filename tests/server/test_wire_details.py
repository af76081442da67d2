"""Details of HTTP and of the protocols: encodings, white space of headers, and ids of messages."""

from __future__ import annotations

import socket

import httpx
import pytest

from tests.server.process import Served


@pytest.mark.parametrize("body", [b"\xff\xfe", b'{"jsonrpc": "2.0", "id": 1, "method": "\xe9"}', b'"\xed\xa0\x80"'])
def test_an_mcp_body_that_is_no_utf8_is_a_parse_error(served: Served, body: bytes) -> None:
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    with served.http(headers=headers) as http:
        answer = http.post("/mcp", content=body)

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32700)


@pytest.mark.parametrize("end", ["", " ", "\t", " \t "])
def test_white_space_behind_a_header_is_no_part_of_it(served: Served, end: str) -> None:
    url = httpx.URL(served.url)
    head = f"POST /sessions/none/abort HTTP/1.1\r\nhost: localhost\r\nsec-fetch-site: same-site{end}\r\n"
    with socket.create_connection((url.host, url.port), timeout=30) as connection:
        connection.sendall(f"{head}content-length: 0\r\nconnection: close\r\n\r\n".encode())
        status = connection.recv(1000).split()[1]

    assert status == b"403"


def test_two_new_messages_with_one_id_are_refused(served: Served) -> None:
    messages = [{"id": "m1", "role": "user", "content": text} for text in ("one", "two")]
    body = {"threadId": "two-of-one-id", "runId": "r", "messages": messages, "tools": [], "context": [], "state": {}}
    with served.http() as http:
        answer = http.post("/agui", json={**body, "forwardedProps": {}})
        kept = http.get("/sessions/two-of-one-id").status_code

    assert ("two new messages have one id" in answer.text, kept) == (True, 404)


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/docs", "/openapi.json", "/.well-known/agent-card.json"])
def test_the_head_of_an_open_path_is_answered(served: Served, path: str) -> None:
    with served.http() as http:
        answer = http.head(path)

    assert (answer.status_code, answer.content) == (200, b"")
