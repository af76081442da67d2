"""Details of HTTP and of the protocols: encodings, white space of headers, and ids of messages."""

from __future__ import annotations

import json
import socket
import uuid
from typing import Any

import httpx
import pytest

from tests.interfaces.server.process import Served
from tests.support.chat_client import chat
from tests.support.mcp_client import begun, calling, headers_of, request


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


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/health", "/ready", "/docs", "/openapi.json", "/.well-known/agent-card.json", "/metrics", "/v1/models"),
        *("/v1/models/parrot", "/memory/sessions", "/sessions", "/sessions/none", "/v1/conversations/none"),
        *(
            "/memory/sessions/none/events?follow=true",
            "/v1/responses/none?stream=true",
            "/sessions/none/abort",
            "/none",
        ),
    ],
)
def test_a_head_has_the_status_of_the_get(served: Served, path: str) -> None:
    with served.http() as http:
        answer, got = http.head(path), http.get(path)

    assert (answer.status_code, answer.content) == (got.status_code, b"")


def test_the_head_of_followed_events_ends_at_once(served: Served) -> None:
    with served.http() as http:
        chat(http, "followed-by-head", "hello")
        answer = http.head("/memory/sessions/followed-by-head/events?follow=true")

    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")


def a2a_message(text: str) -> dict[str, Any]:
    return {"message": {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [{"text": text}]}}


ODD = "1\u20282\u20293\x854 ü"
STREAMS: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "A2A over JSON-RPC": (
        "/a2a",
        {"a2a-version": "1.0"},
        {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": a2a_message(ODD)},
    ),
    "A2A over REST": ("/a2a/rest/message:stream", {"a2a-version": "1.0"}, a2a_message(ODD)),
    "MCP without a handshake": (
        "/mcp",
        headers_of(stateless := request("tools/call", name="parrot", arguments={"input": ODD})),
        stateless,
    ),
    "chat completions": (
        "/v1/chat/completions",
        {},
        {"model": "parrot", "messages": [{"role": "user", "content": ODD}], "stream": True},
    ),
    "responses": ("/v1/responses", {}, {"model": "parrot", "input": ODD, "stream": True}),
    "messages": (
        "/v1/messages",
        {},
        {"model": "parrot", "max_tokens": 9, "messages": [{"role": "user", "content": ODD}], "stream": True},
    ),
    "AG-UI": (
        "/agui",
        {},
        {
            "threadId": "odd-lines",
            "runId": "r",
            "tools": [],
            "context": [],
            "state": {},
            "forwardedProps": {},
            "messages": [{"id": "m1", "role": "user", "content": ODD}],
        },
    ),
}
"""Each API's stream: path, headers and body."""


@pytest.mark.parametrize("api", STREAMS)
def test_an_event_is_one_line_for_clients_that_split_at_line_ends_of_unicode(served: Served, api: str) -> None:
    path, headers, body = STREAMS[api]
    with served.http(headers={"accept": "application/json, text/event-stream", **headers}) as http:
        streamed = http.post(path, json=body)

    assert lines_of(streamed) == ("text/event-stream", [], True)


def test_an_event_of_mcp_with_a_handshake_is_one_line(served: Served) -> None:
    with served.http() as http:
        headers = begun(http)
        streamed = http.post("/mcp", json=calling(ODD, "odd-mcp"), headers=headers)

    assert lines_of(streamed) == ("text/event-stream", [], True)


def lines_of(streamed: httpx.Response) -> tuple[str, list[str], bool]:
    """The media type, the lines that are no line of an event stream, and whether its odd characters arrived."""
    lines = [line for line in streamed.text.splitlines() if line and not line.startswith(":")]
    data = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    odd = [line for line in lines if line.partition(": ")[0] not in ("data", "event", "id", "retry", "data:")]
    characters = {character for each in data for text in strings_of(each) for character in text}
    # The text may come in several pieces.
    return streamed.headers["content-type"].partition(";")[0], odd, set("\u2028\u2029\x85ü") <= characters


def strings_of(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in strings_of(item)]
