"""Bodies that would block the event loop are refused before parsing; large legal bodies pass."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from benchmarks.body_samples import SAMPLES, Sample
from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.server import AgentSource, ApiKey, ServerSettings, create_app
from tests.interfaces.server.process import Served

JSON = {"content-type": "application/json"}
A2A = {**JSON, "a2a-version": "1.0"}
ROUTES = {
    "/v1/chat/completions": '{"model":"bench","messages":[{"role":"user","content":"hi"}],"x":%s}',
    "/v1/messages": '{"model":"bench","max_tokens":9,"messages":[{"role":"user","content":"hi"}],"x":%s}',
    "/v1/messages/count_tokens": '{"model":"bench","messages":[{"role":"user","content":"hi"}],"x":%s}',
    "/v1/responses": '{"model":"bench","input":"hi","x":%s}',
    "/v1/conversations": '{"x":%s}',
    "/sessions/s/steer": '{"text":"hi","x":%s}',
    "/sessions/s/follow_up": '{"text":"hi","x":%s}',
    "/sessions/s/resume": '{"answer":%s}',
    "/a2a": '{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"metadata":{"x":%s}}}',
    "/a2a/rest/message:send": '{"metadata":{"x":%s}}',
}
CHAT = "/v1/chat/completions"


@asynccontextmanager
async def client(folder: Path, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[CompiledAgentGraph]:
        yield create_graph_agent(ScriptedChatModel(["Yes."], cycle=True))

    source = AgentSource("bench", "", f"sqlite:///{folder}/s.db", opened)
    app = create_app(source, settings=ServerSettings(**settings))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=120) as http:
            yield http


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("value", "status", "reason"),
    [
        ("[" + "1," * 60_000 + "1]", 413, "more than 60000 JSON values"),
        ("[" + "{}," * 30_000 + "{}]", 413, "more than 60000 JSON values"),
        ("[" * 101 + "]" * 101, 400, "nested more than 100 levels deep"),
        ("1" * 101, 400, "a number of more than 100 characters"),
        ('"\x00"', 400, "a NUL byte"),
    ],
)
async def test_every_route_refuses_bodies_that_block_the_event_loop(
    tmp_path: Path, path: str, value: str, status: int, reason: str
) -> None:
    body = (ROUTES[path] % value).encode()

    async def chunked() -> AsyncIterator[bytes]:
        for at in range(0, len(body), 1000):
            yield body[at : at + 1000]

    contents: list[tuple[Any, str]] = [
        (body, "application/json"),
        (chunked(), "application/json"),
        (body, "text/plain"),
    ]
    async with client(tmp_path) as http:
        answers = [
            await http.post(path, content=content, headers={**A2A, "content-type": kind}) for content, kind in contents
        ]

    assert [(answer.status_code, reason in answer.text) for answer in answers] == [(status, True)] * 3


async def test_encoded_body_is_refused_without_being_decoded(tmp_path: Path) -> None:
    body = gzip.compress((ROUTES[CHAT] % "1").encode())
    async with client(tmp_path) as http:
        refused = await http.post(CHAT, content=body, headers={**JSON, "content-encoding": "gzip"})
        taken = await http.post(CHAT, content=ROUTES[CHAT] % "1", headers={**JSON, "content-encoding": "identity"})

    assert (refused.status_code, "content-encoding" in refused.text, taken.status_code) == (400, True, 200)


async def test_utf_16_is_refused(tmp_path: Path) -> None:
    async with client(tmp_path) as http:
        answers = [
            await http.post(path, content=(ROUTES[path] % "1").encode("utf-16"), headers=A2A) for path in (CHAT, "/a2a")
        ]

    assert [answer.status_code for answer in answers] == [400, 400]


async def test_bounds_are_settings(tmp_path: Path) -> None:
    given = ROUTES[CHAT] % "[[1,2,3]]"
    async with client(tmp_path, max_body_values=6) as http:
        few = await http.post(CHAT, content=given, headers=JSON)
    async with client(tmp_path, max_body_depth=2) as http:
        flat = await http.post(CHAT, content=given, headers=JSON)
    async with client(tmp_path) as http:
        default = await http.post(CHAT, content=given, headers=JSON)

    assert [few.status_code, flat.status_code, default.status_code] == [413, 400, 200]


def _message(role: str = "user", content: Any = "x", **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


@pytest.mark.parametrize(
    ("path", "fields", "reason"),
    [
        (CHAT, {"messages": [_message()] * 11}, "messages: the request has 11 messages, content parts and calls"),
        (CHAT, {"messages": [_message(content=[{"type": "text", "text": "x"}] * 10)]}, "the request has 11 messages"),
        (
            CHAT,
            {"messages": [_message("assistant", tool_calls=[{"id": "a", "function": {"name": "a"}}] * 10)]},
            "the request has 11 messages",
        ),
        (
            "/v1/messages",
            {
                "max_tokens": 9,
                "messages": [_message(content=[{"type": "tool_result", "content": [{"type": "text"}] * 9}])],
            },
            "the request has 11 messages",
        ),
        (
            CHAT,
            {
                "messages": [_message()],
                "tools": [{"type": "function", "function": {"name": f"t{n}"}} for n in range(6)],
            },
            "tools: the request has 6 tools; it may have 5",
        ),
    ],
)
async def test_messages_parts_calls_and_tools_are_bounded(
    tmp_path: Path, path: str, fields: dict[str, Any], reason: str
) -> None:
    async with client(tmp_path, max_messages=10, max_tools=5) as http:
        answer = await http.post(path, json={"model": "bench", **fields})

    assert (answer.status_code, reason in answer.json()["error"]["message"]) == (413, True)


async def test_arguments_of_calls_are_bounded_together(tmp_path: Path) -> None:
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": "a", "arguments": json.dumps({"x": [1] * 7_000})}}
        for n in range(3)
    ]
    answered = [_message("tool", tool_call_id=call["id"]) for call in calls]
    body = {"model": "bench", "messages": [_message(), _message("assistant", None, tool_calls=calls), *answered]}
    async with client(tmp_path) as http:
        answer = await http.post(CHAT, json=body)

    assert (answer.status_code, answer.json()["error"]["message"]) == (
        413,
        "The calls' arguments hold more than 20000 JSON values together. Send fewer calls.",
    )


def _rpc(method: str, role: str, **fields: str) -> str:
    message = {"messageId": "m", "role": role, **fields, "parts": "PARTS"}
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}}
    return json.dumps(request).replace('"PARTS"', "[%s]")


_FRAME = _rpc("SendMessage", "ROLE_USER")
_OLD = _rpc("message/send", "user", kind="message")
_REST = '{"message":{"messageId":"m","role":"ROLE_USER","parts":[%s]}}'


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ('{"data":[' + ",".join(["1"] * 9_000) + "]}", "more than 5000 JSON values"),
        (",".join(['{"text":"x"}'] * 201), "The message has 201 parts; it may have 200"),
        (json.dumps({"text": "x" * 1_000_001}), "characters of text; it may have 1000000"),
    ],
)
async def test_a2a_requests_have_bounds_of_their_own(tmp_path: Path, parts: str, reason: str) -> None:
    async with client(tmp_path) as http:
        rpc = await http.post("/a2a", content=_FRAME % parts, headers=A2A)
        old = await http.post("/a2a", content=_OLD % parts, headers=JSON)
        rest = await http.post("/a2a/rest/message:send", content=_REST % parts, headers=A2A)

    assert [reason in rpc.json()["error"]["message"], reason in old.json()["error"]["message"]] == [True, True]
    assert (rest.status_code, reason in rest.json()["error"]["message"]) == (400, True)


async def test_a2a_parts_that_are_no_list_are_a_client_error(tmp_path: Path) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": {"parts": 1, "content": 1}}}
    async with client(tmp_path) as http:
        answer = await http.post("/a2a", json=request, headers=A2A)

    assert answer.json()["error"]["code"] == -32602


async def test_a2a_file_of_several_megabytes_passes(tmp_path: Path) -> None:
    part = json.dumps({"raw": base64.b64encode(b"word " * 600_000).decode(), "mediaType": "text/plain"})
    async with client(tmp_path) as http:
        answer = await http.post("/a2a", content=_FRAME % (part + ',{"text":"What is it?"}'), headers=A2A)

    assert answer.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize("field", ["messageId", "role", "parts"])
async def test_a2a_message_without_a_required_field_is_refused(tmp_path: Path, field: str) -> None:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    del message[field]
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    async with client(tmp_path) as http:
        answer = await http.post("/a2a", json=body, headers=A2A)

    assert answer.json()["error"]["code"] == -32602


_LEGAL = [
    sample for sample in SAMPLES if sample.name.startswith(("chat: 200", "chat: image", "messages:", "count: 200"))
]


@pytest.mark.parametrize(
    "sample", [sample for sample in _LEGAL if "200" in sample.name or "image" in sample.name], ids=lambda s: s.name
)
async def test_large_legal_requests_pass(tmp_path: Path, sample: Sample) -> None:
    async with client(tmp_path) as http:
        answer = await http.post(sample.path, content=sample.body(), headers={**JSON, **sample.headers})

    assert answer.status_code == 200


def _surrogates() -> bytes:
    return json.dumps({"model": "bench", "messages": [_message(content="\ud800a\x00é" * 20_000)]}).encode()


def _faulty() -> bytes:
    return json.dumps(
        {"model": "bench", "messages": [_message(content="x" * 20_000), _message(role="nobody")]}
    ).encode()


@pytest.mark.parametrize(
    ("body", "status", "param"), [(_surrogates, 200, None), (_faulty, 400, "messages.1.role")], ids=["clean", "faulty"]
)
async def test_body_read_in_a_thread_is_checked_as_any_other(
    tmp_path: Path, body: Callable[[], bytes], status: int, param: str | None
) -> None:
    async with client(tmp_path) as http:
        answer = await http.post(CHAT, content=body(), headers=JSON)

    assert (answer.status_code, answer.json().get("error", {}).get("param")) == (status, param)


def test_client_that_still_sends_receives_the_refusal(served: Served) -> None:
    body = (ROUTES[CHAT].replace("bench", "parrot") % ("[" + "{}," * 2_900_000 + "{}]")).encode()
    with served.http() as http:
        answers = [http.post(CHAT, content=body, headers=JSON) for _ in range(3)]

    assert [answer.status_code for answer in answers] == [413] * 3


async def test_every_refusal_over_http_and_json_is_an_error_object_of_aip_193(tmp_path: Path) -> None:
    send, message = "/a2a/rest/message:send", {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x" * 5000}]}
    posted: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", send, {"headers": {"x-api-key": "wrong"}}),
        ("GET", "/a2a/rest/nothing", {}),
        ("DELETE", send, {}),
        ("POST", send, {"content": "{no"}),
        ("POST", send, {"content": "{}", "headers": {"content-type": "text/plain"}}),
        ("POST", send, {"json": {"message": message}}),
        ("POST", send, {"json": {}}),
        ("GET", "/a2a/rest/tasks/none", {}),
    ]
    keys = (ApiKey(name="anna", key=SecretStr("anna-0123456789abcdef")),)
    async with client(tmp_path, keys=keys, max_body_bytes=4000) as http:
        http.headers.update({**A2A, "x-api-key": "anna-0123456789abcdef"})
        answers = [await http.request(method, path, **given) for method, path, given in posted]

    errors = [(answer.status_code, answer.json()["error"]) for answer in answers]
    info = "type.googleapis.com/google.rpc.ErrorInfo"
    assert [
        (error["code"] == status, error["status"], bool(error["message"]), error["details"][0]["@type"] == info)
        for status, error in errors
    ] == [
        (True, name, True, True)
        for name in ("UNAUTHENTICATED", "NOT_FOUND", "UNIMPLEMENTED", *["INVALID_ARGUMENT"] * 4, "NOT_FOUND")
    ]
