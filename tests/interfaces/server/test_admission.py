"""Admission: keys, limits and the isolation of callers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from fastapi import FastAPI

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.errors import ConfigError
from graph_agent.interfaces.server.admission.gate import Caller, RequestLimits
from graph_agent.interfaces.server.admission.worker_folder import SharedLimits
from graph_agent.interfaces.server.problems import ProblemError
from graph_agent.server import AgentSource, ServerSettings, create_app, read_keys
from tests.interfaces.server.process import Served, eventually, refused, serving

ANNA, BERT = "anna-0123456789abcdef", "bert-0123456789abcdef"
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "keys").write_text(f"# who may come in\nanna:{ANNA}\n")
    options = ["--keys-file", str(folder / "keys"), "--set", "concurrent_requests=2", "--set", "body_timeout_s=1"]
    environment = {"GRAPH_AGENT_API_KEYS": f"bert:{BERT}"}
    with serving(folder, *options, "--set", "max_body_bytes=100000", environment=environment) as server:
        yield server


def body(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "parrot", "messages": [{"role": "user", "content": text}], **fields}


def test_both_header_styles_authenticate(guarded: Served) -> None:
    with (
        openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=ANNA, max_retries=0) as one,
        anthropic.Anthropic(base_url=guarded.url, api_key=ANNA, max_retries=0) as two,
        anthropic.Anthropic(base_url=guarded.url, auth_token=BERT, max_retries=0) as three,
    ):
        replies = [one.chat.completions.create(**body("hi")).choices[0].message.content]
        for client in (two, three):
            answer = client.messages.create(**body("hi", max_tokens=9))
            replies += [block.text for block in answer.content if block.type == "text"]

    assert replies == ["You said: hi"] * 3


@pytest.mark.parametrize("headers", [{}, {"x-api-key": "wrong"}, {"authorization": f"Basic {ANNA}"}])
def test_unauthenticated_requests_are_refused_in_each_apis_format(guarded: Served, headers: dict[str, str]) -> None:
    with guarded.http(headers=headers) as http:
        # A body that is no JSON: nothing of it is read.
        answers = [http.post(path, content=b"{") for path in (CHAT, "/v1/messages", "/sessions/s/abort")]
        answers += [http.get(path) for path in ("/v1/models", "/metrics", "/memory/sessions")]
        open_to_all = [http.get(path).status_code for path in ("/health", "/ready", "/openapi.json")]

    assert ([answer.status_code for answer in answers], open_to_all) == ([401] * 6, [200] * 3)
    errors = [answer.json()["error"] for answer in answers[:2]]
    reason = "The API key is none of this server's; " if "x-api-key" in headers else "An API key is needed: "
    assert [(error["type"], error["message"].startswith(reason)) for error in errors] == [
        ("authentication_error", True)
    ] * 2


def test_a_key_sees_its_own_sessions_only(guarded: Served) -> None:
    with guarded.http(headers={"x-api-key": ANNA}) as anna, guarded.http(headers={"x-api-key": BERT}) as bert:
        anna.post(CHAT, json=body("one"), headers={"X-Session-Id": "shared"})
        bert.post(CHAT, json=body("two", metadata={"session_id": "shared"}))
        anna.post(CHAT, json=body("mine"), headers={"X-Session-Id": "private"})
        listed = [sorted(http.get("/memory/sessions").json()["sessions"]) for http in (anna, bert)]
        answers = [http.get("/sessions/shared").json()["answer"] for http in (anna, bert)]
        others = [
            bert.get("/sessions/private"),
            bert.delete("/sessions/private"),
            bert.get("/memory/sessions/private/events"),
            *(bert.post(f"/sessions/private/{verb}", json={"text": "x"}) for verb in ("steer", "follow_up")),
            *(bert.post(f"/sessions/private/{verb}") for verb in ("abort", "resume")),
        ]
        session_ids = {event["session_id"] for event in anna.get("/memory/sessions/private/events").json()["events"]}

    assert listed == [["private", "shared"], ["shared"]]
    assert answers == ["You said: one", "You said: two"]
    assert ([answer.status_code for answer in others], session_ids) == ([404] * 7, {"private"})


@pytest.mark.parametrize("session", ["../anna/private", "anna/private", "a b", "x" * 129, "é"])
def test_a_session_id_gives_no_access_to_another_keys_session(guarded: Served, session: str) -> None:
    with guarded.http(headers={"x-api-key": BERT}) as http:
        answer = http.post(CHAT, json=body("hi", metadata={"session_id": session}))

    assert answer.status_code == 400


def test_excess_concurrent_requests_receive_retry_after(guarded: Served, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with guarded.http(headers={"x-api-key": ANNA}) as anna, guarded.http(headers={"x-api-key": BERT}) as bert:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(anna.post, CHAT, json=body(f"!wait {go}")) for _ in range(2)]
            while "under_way 2.0" not in bert.get("/metrics").text:
                time.sleep(0.01)
            third = anna.post(CHAT, json=body("hi"))
            other = bert.post(CHAT, json=body("hi"))
            go.touch()
            first_two = [future.result().status_code for future in waiting]
        after = anna.post(CHAT, json=body("hi"))

    assert (third.status_code, third.headers["retry-after"], third.json()["error"]["type"]) == (
        429,
        "1",
        "rate_limit_error",
    )
    assert ([other.status_code, *first_two], after.status_code) == ([200, 200, 200], 200)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_refused_while_it_is_read(guarded: Served, chunked: bool) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(1000):
            yield b"x" * 1000

    content = pieces() if chunked else b"x" * 1_000_000
    with guarded.http(headers={"x-api-key": ANNA}) as http:
        try:
            status = http.post(CHAT, content=content).status_code
        except httpx.WriteError:
            status = 413  # the server hung up while we were still writing
        small = http.post(CHAT, json=body("hi")).status_code

    assert (status, small) == (413, 200)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n",
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-api-key: {ANNA}\r\ncontent-length: 50\r\n\r\n{{".encode(),
    ],
    ids=["nothing", "half a header", "half a body"],
)
def test_a_connection_that_stalls_is_closed(guarded: Served, data: bytes) -> None:
    host, port = guarded.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(data)
        received = b""
        while piece := connection.recv(4096):
            received += piece

    assert received.partition(b"\r\n")[0] in (b"", b"HTTP/1.1 408 Request Timeout")


def test_no_secret_and_no_trace_in_the_log(guarded: Served) -> None:
    with guarded.http(headers={"x-api-key": ANNA}) as http:
        http.post(CHAT, json=body("!fail auth"))
        http.post(CHAT, json=body(f"the key is {ANNA}"))

    log = guarded.log.read_text()
    assert [word for word in (ANNA, BERT, "secretsecret", "Traceback") if word in log] == []


def test_any_other_address_needs_keys(tmp_path: Path) -> None:
    status, message = refused(tmp_path, ["--host", "0.0.0.0"])

    assert (status, message) == (
        2,
        "error: host='0.0.0.0' can be reached from other machines, and no API keys are set. "
        "Set GRAPH_AGENT_API_KEYS or --keys-file, or bind to 127.0.0.1.",
    )


@pytest.mark.parametrize(
    ("host", "allowed"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("localhost", True), ("::", False), ("my.host", False)],
)
def test_which_addresses_are_this_machines_own(host: str, allowed: bool) -> None:
    try:
        ServerSettings().checked_for(host)
    except ConfigError:
        assert not allowed
    else:
        assert allowed


def test_keys_that_cannot_be_used_are_refused_without_showing_them(tmp_path: Path) -> None:
    messages = []
    for text in ("short", "bad name:0123456789abcdef", "a:0123456789abcdef,a:fedcba9876543210"):
        with pytest.raises(ConfigError) as error:
            read_keys(environment={"GRAPH_AGENT_API_KEYS": text})
        messages.append(str(error.value))

    assert messages == [
        "GRAPH_AGENT_API_KEYS, entry 1: a key has 16 characters or more; make one with 'openssl rand -hex 24'.",
        "GRAPH_AGENT_API_KEYS, entry 1: a key's name is 1 to 64 letters, digits, '_' or '-'.",
        "GRAPH_AGENT_API_KEYS, entry 1: another key is named 'a' too; give each a name of its own.",
    ]


def test_comments_of_a_key_file_are_not_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"\ufeffanna:{ANNA}\n# once: bert, who-had-this-key-here\n\r\n  {BERT},\r\n", encoding="utf-8")

    keys = [one.key.get_secret_value() for one in read_keys(file, {"GRAPH_AGENT_API_KEYS": "c:0123456789abcdef, \n"})]

    assert keys == ["0123456789abcdef", ANNA, f"{BERT},"]


def test_a_caller_without_a_key_sees_no_keyed_sessions() -> None:
    anonymous, anna = Caller(""), Caller("anna")

    assert [anonymous.session(thread) for thread in ("s", "anna/s", "/parked/t")] == ["s", None, None]
    assert [anna.session(thread) for thread in ("s", "anna/s", "anna/parked/t", "bert/s")] == [None, "s", None, None]


def test_requests_of_a_minute_are_counted_by_key() -> None:
    clock = [0.0]
    limits = RequestLimits(concurrent=9, per_minute=2, clock=lambda: clock[0])
    retries: list[float | None] = []
    for clock[0], caller in [(0.0, "a"), (10.0, "a"), (20.0, "a"), (20.0, "b"), (61.0, "a"), (62.0, "a")]:
        try:
            with limits.slot(caller):
                retries.append(None)
        except ProblemError as problem:
            retries.append(problem.retry_after_s)

    assert retries == [None, None, 40.0, None, None, 8.0]


@asynccontextmanager
async def narrow_server(folder: Path) -> AsyncIterator[FastAPI]:
    """A server with a limit of one request at the same time."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[CompiledAgentGraph]:
        yield create_graph_agent(ScriptedChatModel(["Hello."], cycle=True))

    settings = ServerSettings(concurrent_requests=1)
    app = create_app(AgentSource("a", "", f"sqlite:///{folder}/s.db", opened), settings=settings)
    async with app.router.lifespan_context(app):
        yield app


A_MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"model": "a", "messages": [{"role": "user", "content": "hi"}]}),
    "chat stream": (CHAT, {"model": "a", "messages": [{"role": "user", "content": "hi"}], "stream": True}),
    "messages": ("/v1/messages", {"model": "a", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}),
    "responses": ("/v1/responses", {"model": "a", "input": "hi"}),
    "responses stream": ("/v1/responses", {"model": "a", "input": "hi", "stream": True}),
    "A2A": ("/a2a", {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": A_MESSAGE}}),
    "A2A stream": (
        "/a2a",
        {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": {"message": A_MESSAGE}},
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_slot_is_free_before_the_last_byte_of_the_answer_is_sent(tmp_path: Path, name: str) -> None:
    path, content = REQUESTS[name]
    headers = [(b"content-type", b"application/json"), (b"x-session-id", b"s"), (b"a2a-version", b"1.0")]
    statuses: list[int] = []
    async with asyncio.timeout(60), narrow_server(tmp_path) as app:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            await http.post(CHAT, json=REQUESTS["chat"][1], headers={"x-session-id": "s"})

            async def exchange(again: bool) -> None:
                sent = json.dumps(content).encode()
                length = (b"content-length", b"%d" % len(sent))
                scope = {
                    "type": "http",
                    "http_version": "1.1",
                    "method": "POST",
                    "path": path,
                    "query_string": b"",
                    "headers": [*headers, length],
                }
                left = asyncio.Event()
                parts: Iterator[Any] = iter([{"type": "http.request", "body": sent, "more_body": False}])

                async def receive() -> Any:
                    if (part := next(parts, None)) is None:
                        await left.wait()
                        return {"type": "http.disconnect"}
                    return part

                async def send(message: Any) -> None:
                    nonlocal again
                    if message["type"] == "http.response.start":
                        statuses.append(message["status"])
                    is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
                    if (is_last or b"[DONE]" in message.get("body", b"")) and again:
                        # As a client does that has its answer, before the server goes on.
                        again = False
                        await exchange(again)

                await app(scope, receive, send)

            await exchange(again=True)

    assert statuses == [200, 200]


def test_follow_ups_count_as_inputs_and_a_caller_at_its_limit_can_stop_its_run(tmp_path: Path) -> None:
    with serving(tmp_path, "--set", "requests_per_minute=3") as server, server.http() as http:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            headers = {"X-Session-Id": "s1"}
            waiting = pool.submit(http.post, CHAT, json=body(f"!wait {tmp_path / 'never'}"), headers=headers)
            eventually(lambda: http.get("/sessions/s1").status_code == 200)
            queued = [http.post("/sessions/s1/follow_up", json={"text": f"next {number}"}) for number in range(4)]
            others = [http.post(CHAT, json=body("hi")), http.post("/sessions/s1/resume")]
            steered = http.post("/sessions/s1/steer", json={"text": "hurry"}).status_code
            stopped = http.post("/sessions/s1/abort").json()
            waiting.result(60)
        events = http.get("/memory/sessions/s1/events").json()["events"]

    busy = queued[2]
    assert [answer.status_code for answer in (*queued, *others)] == [202, 202, 429, 429, 429, 429]
    assert (busy.json()["kind"], 1 <= int(busy.headers["retry-after"]) <= 60) == ("busy", True)
    assert (steered, stopped, "next 2" in str(events)) == (202, {"accepted": True}, False)


def test_a_follow_up_takes_no_place_among_the_requests_at_the_same_time(tmp_path: Path) -> None:
    limits = [RequestLimits(1, 3), SharedLimits(tmp_path, "requests", 1, 3)]
    refusals = []
    for one in limits:
        with one.slot("a"):
            one.count("a")
            one.count("a")
            with pytest.raises(ProblemError) as refused_:
                one.count("a")
            refusals.append((refused_.value.kind, round(refused_.value.retry_after_s or 0)))

    assert refusals == [("busy", 60)] * 2


def test_a_caller_at_its_rate_can_read_and_cancel_over_a2a_and_mcp(tmp_path: Path) -> None:
    rpc = [("/a2a", name) for name in ("GetTask", "CancelTask", "SendMessage", "message/stream")]
    rpc += [("/mcp", "tools/list"), ("/mcp", "tools/call")]
    rest = ["/a2a/rest/tasks/t:cancel", "/a2a/rest/message:send", "/a2a/rest/v1/message:stream"]
    accepts = {"accept": "application/json, text/event-stream"}
    with serving(tmp_path, "--set", "requests_per_minute=1") as server, server.http(headers=accepts) as http:
        first = http.post(CHAT, json=body("hi")).status_code
        sent = [(path, {"jsonrpc": "2.0", "id": 1, "method": name, "params": {"id": "t"}}) for path, name in rpc]
        answers = [http.post(path, json=content) for path, content in [*sent, *((path, {}) for path in rest)]]

    limited = [answer.status_code == 429 for answer in answers]
    assert (first, limited) == (200, [False, False, True, True, False, True, False, True, True])
