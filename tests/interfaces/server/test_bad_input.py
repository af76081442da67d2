"""Bad input from the OpenAPI document and from a corpus of damaged requests: no status 500, and no lost session."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.generation.hypothesis import setup

from tests.interfaces.server.process import Served
from tests.support.chat_client import CHAT, answer, body, chat

load_all_checks()
setup()  # as its plug-in of pytest does, which every test would load
_CHECKS = ["status_code_conformance", "content_type_conformance", "response_schema_conformance"]
_EXAMPLES = 20 if settings.get_current_profile_name() == "thorough" else 2
OPERATIONS = [
    "GET /health",
    "GET /memory/facts",
    "PATCH /memory/facts/{fact_id}",
    "DELETE /memory/facts/{fact_id}",
    "GET /memory/sessions",
    "GET /memory/sessions/{session_id}/events",
    "GET /memory/summaries",
    "GET /metrics",
    "GET /ready",
    "GET /sessions",
    "GET /sessions/{session_id}",
    "GET /sessions/{session_id}/case",
    "GET /sessions/{session_id}/queue",
    "DELETE /sessions/{session_id}/queue/{message_id}",
    "DELETE /sessions/{session_id}",
    "GET /v1/conversations/{conversation_id}",
    "GET /v1/conversations/{conversation_id}/items",
    "GET /v1/conversations/{conversation_id}/items/{item_id}",
    "DELETE /v1/conversations/{conversation_id}",
    "DELETE /v1/conversations/{conversation_id}/items/{item_id}",
    "GET /v1/models",
    "GET /v1/models/{model_id}",
    "GET /v1/responses/{response_id}",
    "GET /v1/responses/{response_id}/input_items",
    "DELETE /v1/responses/{response_id}",
    "POST /agui",
    "POST /sessions/{session_id}/abort",
    "POST /sessions/{session_id}/feedback",
    "POST /sessions/{session_id}/follow_up",
    "GET /sessions/{session_id}/fork",
    "POST /sessions/{session_id}/fork",
    "POST /sessions/{session_id}/resume",
    "POST /sessions/{session_id}/revoke",
    "POST /sessions/{session_id}/steer",
    "POST /sessions/{session_id}/title",
    "POST /v1/chat/completions",
    "POST /v1/conversations",
    "POST /v1/conversations/{conversation_id}",
    "POST /v1/conversations/{conversation_id}/items",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/responses",
    "POST /v1/responses/compact",
    "POST /v1/responses/input_tokens",
    "POST /v1/responses/{response_id}/cancel",
]

# Their input is at most a path's segment, which may be any text.
_ALWAYS_FITS = {
    "DELETE /memory/facts/{fact_id}",
    "GET /health",
    "GET /ready",
    "GET /v1/models/{model_id}",
    "GET /v1/responses/{response_id}",
    "GET /v1/responses/{response_id}/input_items",
    "DELETE /v1/responses/{response_id}",
    "POST /v1/responses/{response_id}/cancel",
}


@pytest.fixture(scope="module")
def operations(served: Served) -> dict[str, Any]:
    with served.http() as http:
        openapi = http.get("/openapi.json").json()
    # A history that is followed has no end to wait for.
    events = openapi["paths"]["/memory/sessions/{session_id}/events"]["get"]
    events["parameters"] = [one for one in events["parameters"] if one["name"] != "follow"]
    made = schemathesis.openapi.from_dict(openapi)
    made.config.update(base_url=served.url)
    found: list[Any] = list(made.get_all_operations())
    return {one.ok().label: one.ok() for one in found}


def test_every_operation_is_described(operations: dict[str, Any]) -> None:
    assert sorted(operations) == sorted(OPERATIONS)


_MODES = {GenerationMode.POSITIVE: "fits", GenerationMode.NEGATIVE: "does not fit"}


# `make test` takes one kind of input for each operation.
@pytest.mark.parametrize(
    ("label", "mode"),
    [
        pytest.param(
            label,
            mode,
            id=f"{label}-{name}",
            marks=[]
            if (at + (mode is GenerationMode.NEGATIVE)) % 2 == 0 or label in _ALWAYS_FITS
            else pytest.mark.thorough,
        )
        for at, label in enumerate(OPERATIONS)
        for mode, name in _MODES.items()
        if mode is GenerationMode.POSITIVE or label not in _ALWAYS_FITS
    ],
)
def test_responses_conform_to_the_openapi_document(
    operations: dict[str, Any], label: str, mode: GenerationMode
) -> None:
    operation = operations[label]
    # Only /ready may return 503, and does so after failures that other tests cause.
    checks = CHECKS.get_by_names(_CHECKS if label == "GET /ready" else ["not_a_server_error", *_CHECKS])

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        # An operation that only looks stored objects up has few kinds of input.
        max_examples=max(1, _EXAMPLES // 4) if "{response_id}" in label or "/conversations" in label else _EXAMPLES,
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
        database=None,
    )
    def check(case: Case) -> None:
        if isinstance(case.body, dict) and "model" in case.body and mode is GenerationMode.POSITIVE:
            case.body = {**case.body, "model": "parrot"}  # else every request would fail at the model's name
        case.call_and_validate(checks=checks, timeout=60)

    check()


MESSAGE = {"role": "user", "content": "hi"}
CORPUS: list[Any] = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"\xff\xfe",
    b"\x00" * 10,
    b"{" * 10_000,
    b"[" * 100_000,
    b'{"model": "parrot", "messages": ' + b"[" * 500 + b"]" * 500 + b"}",
    b'{"model": "parrot", "messages": [{"role": "user", "content": "hi"}], "temperature": NaN}',
    b'{"model": "parrot", "messages": [{"role": "user", "content": "hi"}], "temperature": 1e999}',
    b'{"model": "parrot", "messages": [{"role": "user", "content": "hi"}], "max_tokens": ' + b"9" * 5000 + b"}",
    {"model": "parrot"},
    {"model": "parrot", "messages": []},
    {"model": "parrot", "messages": {}},
    {"model": "parrot", "messages": [None]},
    {"model": "parrot", "messages": [{}]},
    {"model": "parrot", "messages": [{"role": "robot", "content": "hi"}]},
    {"model": "parrot", "messages": [{"role": "system", "content": ""}]},
    {"model": "parrot", "messages": [{"role": "user"}]},
    {"model": "parrot", "messages": [{"role": "user", "content": 7}]},
    {"model": "parrot", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    {"model": "parrot", "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}]},
    {"model": "parrot", "messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
    {"model": "parrot", "messages": [{"role": "assistant", "content": "hi"}]},
    {"model": "parrot", "messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]},
    {"model": "parrot", "messages": [{"role": "tool", "content": "hi"}]},
    {"model": "parrot", "messages": [MESSAGE], "max_tokens": 0},
    {"model": "parrot", "messages": [MESSAGE], "stream": "yes"},
    {"model": "parrot", "messages": [MESSAGE], "metadata": {"session_id": "a/b"}},
    {"model": "parrot", "messages": [MESSAGE], "max_tokens": 5, "tools": [{"name": "a b", "input_schema": {}}]},
    {
        "model": "parrot",
        "messages": [MESSAGE],
        "max_tokens": 5,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 7}}},
        "output_config": {"format": {"type": "json_schema", "schema": {"type": 7}}},
    },
    {
        "model": "parrot",
        "messages": [MESSAGE],
        "max_tokens": 5,
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "http://127.0.0.1:9/x"}}},
        "output_config": {"format": {"type": "json_schema", "schema": {"$ref": "http://127.0.0.1:9/x"}}},
    },
    {
        "model": "parrot",
        "messages": [MESSAGE],
        "max_tokens": 5,
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"items": {"$ref": "#/$defs/none"}}}},
        "output_config": {"format": {"type": "json_schema", "schema": {"items": {"$ref": "#/$defs/none"}}}},
    },
]


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
@pytest.mark.parametrize("body", CORPUS, ids=range(len(CORPUS)))
def test_damage_is_a_400_in_the_apis_own_shape(served: Served, path: str, body: Any) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with served.http() as http:
        response = http.post(path, content=content, headers={"content-type": "application/json"})

    error = response.json()["error"]
    assert (response.status_code, error["type"], bool(error["message"])) == (400, "invalid_request_error", True)


def as_input(body: Any) -> Any:
    """A damaged chat request as one for a response."""
    if isinstance(body, bytes):
        return body.replace(b"messages", b"input").replace(b"max_tokens", b"max_output_tokens")
    shape = body.get("response_format", {}).get("json_schema")
    named = {"text": {"format": {"type": "json_schema", **shape}}} if shape else {}
    fields = {name: value for name, value in body.items() if name in ("model", "stream", "metadata", "tools")}
    return {**fields, **({"input": body["messages"]} if "messages" in body else {}), **named}


DAMAGED_INPUT = [each for each in map(as_input, CORPUS) if each != as_input({"model": "parrot", "messages": [MESSAGE]})]


@pytest.mark.parametrize("body", DAMAGED_INPUT, ids=range(len(DAMAGED_INPUT)))
def test_a_damaged_request_for_a_response_is_a_client_error(served: Served, body: Any) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with served.http() as http:
        response = http.post("/v1/responses", content=content, headers={"content-type": "application/json"})

    error = response.json()["error"]
    assert (response.status_code, error["type"], bool(error["message"])) == (400, "invalid_request_error", True)


@pytest.mark.parametrize("text", [" ", "\u2003", "\x1c", "\x1f \x1d\x85"])
def test_a_blank_text_is_a_400(served: Served, text: str) -> None:
    with served.http() as http:
        chat(http, "blank", "hi")
        bodies = {"title": {"title": text}, "steer": {"text": text}, "follow_up": {"text": text}}
        found = [http.post(f"/sessions/blank/{path}", json=body).status_code for path, body in bodies.items()]

    assert found == [400] * 3


@pytest.mark.parametrize(
    "text",
    ["\ud800 alone", "a\x00b", "\u202e\u0000\uffff", "🙂" * 1000, "data: [DONE]\n\n", "\r\n", "1\u20282\u20293\x854"],
)
def test_odd_text_is_echoed_and_the_session_stays_valid(served: Served, text: str) -> None:
    session = f"odd-{abs(hash(text))}"
    with served.http() as http:
        content = json.dumps({"model": "parrot", "messages": [{"role": "user", "content": text}], "stream": True})
        headers = {"content-type": "application/json", "X-Session-Id": session}
        streamed = http.post(CHAT, content=content, headers=headers)
        after = chat(http, session, "and?")

    data = [line for line in streamed.text.splitlines() if line.startswith("data: ")]
    chunks = [json.loads(line[6:]) for line in data[:-1]]
    streamed_text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    cleaned = text.replace("\ud800", "\ufffd").replace("\x00", "\ufffd")
    assert (data[-1], streamed_text) == ("data: [DONE]", f"You said: {cleaned}")
    assert answer(after) == f"You said: {cleaned} / and?"


@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages", "/v1/conversations", "/sessions/s/steer"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "The request's body is not valid JSON: Expecting property name enclosed in double quotes"),
        ("hello", "The request's body is not valid JSON: Expecting value"),
        ("[1]", "The request's body is not a JSON object"),
        ('"text"', "The request's body is not a JSON object"),
    ],
)
def test_a_body_that_is_no_json_object_is_described(served: Served, path: str, content: str, message: str) -> None:
    with served.http() as http:
        response = http.post(path, content=content, headers={"content-type": "application/json"})

    error = response.json()["error"]
    text = error if isinstance(error, str) else error["message"]
    assert (response.status_code, text[: len(message)]) == (400, message)


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (CHAT, {"messages": [0] * 9}),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{}] * 9}]}),
        (CHAT, {"messages": [{"role": "user", "content": "hi"}], "tools": [{}] * 9}),
        (CHAT, {"messages": [{"role": "user", "content": "hi"}], "stop": [0] * 9}),
        ("/v1/messages", {"messages": [0] * 9}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "tools": [0] * 9}),
    ],
)
def test_of_many_faults_in_a_list_the_first_is_looked_for(served: Served, path: str, more: dict[str, Any]) -> None:
    with served.http() as http:
        error = http.post(path, json={"model": "parrot", "max_tokens": 9, **more}).json()["error"]

    assert re.findall(r"\.([1-8])\b", error["message"]) == []


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ('{"n": 123456789012345678901234567890, "m": -1e999}', 200),
        ('{"\\ud800": {"\\ud800": ["\\ud800\\u0000"]}}', 200),
        ('{"deep": ' + "[" * 150 + "]" * 150 + "}", 200),
        ('{"deep": ' + "[" * 300 + "]" * 300 + "}", 400),
        ('{"deep": ' + "[" * 100_000 + "]" * 100_000 + "}", 400),
        ("[]", 400),
    ],
    ids=range(6),
)
def test_odd_arguments_of_calls_in_a_history_break_nothing(served: Served, arguments: str, status: int) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "content": "done"}
    with served.http() as http:
        response = http.post(CHAT, json=body("go", called, result))

    assert response.status_code == status, response.text


@pytest.mark.parametrize(
    "request_text",
    [
        "GET / HTTP/9.9\r\n\r\n",
        "\r\n\r\n\r\n",
        "POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        "POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        "POST /v1/messages HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        "GET /health HTTP/1.1\r\nhost: x\r\nx-big: " + "x" * 200_000 + "\r\n\r\n",
        "GET /sessions/%00%ff HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        "GET /health HTTP/1.1\r\nhost: x\r\nauthorization: Bearer \xff\xfe\r\nconnection: close\r\n\r\n",
    ],
    ids=range(8),
)
def test_broken_http_breaks_nothing(served: Served, request_text: str) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        try:
            connection.sendall(request_text.encode("latin-1"))
            connection.shutdown(socket.SHUT_WR)
            status = connection.recv(100).split(b" ")[1:2]
        except OSError:
            status = []
    with served.http() as http:
        health = http.get("/health").status_code

    assert (status in ([], [b"400"], [b"404"], [b"408"], [b"431"], [b"200"]), health) == (True, 200)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("stream", [False, True])
def test_a_catastrophic_pattern_is_a_client_error(served: Served, stream: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"}}}
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    order = [{"role": "user", "content": '!json {"a": "' + "a" * 5000 + '"}'}]
    with served.http() as http:
        response = http.post(
            CHAT, json={"model": "parrot", "messages": order, "response_format": shape, "stream": stream}
        )

    # On a busy machine, the stream has begun before the check is abandoned, and ends with the error.
    has_begun = stream and response.headers["content-type"].startswith("text/event-stream")
    assert (response.status_code, "The answer could not be held to the response format:" in response.text) == (
        200 if has_begun else 400,
        True,
    )


def test_a_schema_that_is_too_long_to_check_is_refused(served: Served) -> None:
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(3000)}}
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with served.http() as http:
        response = http.post(CHAT, json={**body("hi"), "response_format": shape})

    assert (response.status_code, response.json()["error"]["message"].partition(";")[2]) == (400, " it may have 50000.")


def test_an_effort_that_there_is_not_is_refused_with_those_there_are(served: Served) -> None:
    with served.http() as http:
        one = http.post(CHAT, json=body("hi", reasoning_effort="banana"))
        two = http.post("/v1/messages", json=body("hi", max_tokens=9, output_config={"effort": "banana"}))

    efforts = "'low', 'medium', 'high', 'xhigh' or 'max'"
    assert [(response.status_code, response.json()["error"]["message"]) for response in (one, two)] == [
        (400, f"reasoning_effort: Input should be 'none', 'minimal', {efforts}"),
        (400, f"output_config.effort: Input should be {efforts}"),
    ]
