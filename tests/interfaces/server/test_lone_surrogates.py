"""Lone surrogates in requests: an error that names the field, and never status 500."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_agent.base._internal.text import find_lone_surrogate
from tests.interfaces.server.process import Served, eventually
from tests.support.chat_client import CHAT

HALF = "\ud800"
MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
CALL = {"id": HALF, "type": "function", "function": {"name": "f", "arguments": "{}"}}
GO = {"role": "user", "content": "go"}


def rpc(message: dict[str, Any], id_: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "method": "SendMessage", "params": {"message": {**MESSAGE, **message}}}


def post(served: Served, path: str, body: Any) -> tuple[int, Any]:
    with served.http(headers={"content-type": "application/json", "a2a-version": "1.0"}) as http:
        response = http.post(path, content=json.dumps(body))
    return response.status_code, response.json()


@pytest.mark.parametrize("end", ["/a2a", "/a2a/"])
@pytest.mark.parametrize(
    ("body", "id_", "place"),
    [
        (rpc({}, HALF), None, "id"),
        (rpc({}, f"a{HALF}b"), None, "id"),
        (rpc({}, "\udfff\ud800"), None, "id"),
        (rpc({"messageId": HALF}), 1, "params.message.messageId"),
        (rpc({"contextId": HALF}), 1, "params.message.contextId"),
        (rpc({"taskId": HALF}, "two"), "two", "params.message.taskId"),
        (rpc({"parts": [{"text": HALF}]}), 1, "params.message.parts.0.text"),
        (rpc({"metadata": {"a": {HALF: 1}}}), 1, "params.message.metadata.a"),
        ({"jsonrpc": "2.0", "id": HALF, "method": "message/send", "params": {}}, None, "id"),
        ({"jsonrpc": "2.0", "id": 1, "method": HALF, "params": {}}, 1, "method"),
        ({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": HALF}}, 1, "params.id"),
        ([rpc({}, HALF)], None, "0.id"),
    ],
    ids=range(12),
)
def test_over_jsonrpc_it_is_an_invalid_request(served: Served, end: str, body: Any, id_: Any, place: str) -> None:
    status, response = post(served, end, body)

    error = response["error"]
    assert (status, response["id"], error["code"], error["message"].partition(" holds")[0]) == (400, id_, -32600, place)


def test_over_rest_it_is_an_invalid_argument(served: Served) -> None:
    status, response = post(served, "/a2a/rest/message:send", {"message": {**MESSAGE, "messageId": HALF}})

    assert (status, response["error"]["status"], response["error"]["message"].partition(" holds")[0]) == (
        400,
        "INVALID_ARGUMENT",
        "message.messageId",
    )


@pytest.mark.parametrize("id_", ["😀", "\\ud800", "a\\\\ud800", 7, None])
def test_whole_characters_and_backslashes_are_taken(served: Served, id_: Any) -> None:
    status, response = post(served, "/a2a", rpc({}, id_))

    assert (status, response["id"], "error" in response and response["error"]["code"]) in [
        (200, id_, False),
        (200, None, -32600),
    ]


@pytest.mark.parametrize("bad", [HALF, "a\x00", "\ufffd"])
@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        (CHAT, {"messages": [GO, {"role": "assistant", "tool_calls": [CALL]}]}, "messages.1.tool_calls.0.id"),
        (CHAT, {"messages": [GO, {"role": "tool", "tool_call_id": HALF, "content": "x"}]}, "messages.1.tool_call_id"),
        (CHAT, {"messages": [GO], "metadata": {"session_id": HALF}}, "metadata.session_id"),
        (
            "/v1/messages",
            {"messages": [GO, {"role": "assistant", "content": [{"type": "tool_use", "id": HALF, "name": "f"}]}]},
            "messages.1.content.0.id",
        ),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": HALF}]}]},
            "messages.0.content.0.tool_use_id",
        ),
        ("/v1/messages", {"messages": [GO], "metadata": {"session_id": HALF}}, "metadata.session_id"),
    ],
    ids=range(6),
)
def test_an_id_of_a_chat_request_that_cannot_be_kept_is_refused_by_its_field(
    served: Served, path: str, more: dict[str, Any], param: str, bad: str
) -> None:
    body = {"model": "parrot", "max_tokens": 9, **more}
    sent = json.loads(json.dumps(body).replace(json.dumps(HALF), json.dumps(bad)))
    status, response = post(served, path, sent)

    assert (status, response["error"]["type"], response["error"]["message"].partition(":")[0]) == (
        400,
        "invalid_request_error",
        param,
    )


@given(st.recursive(st.text(st.characters(codec=None, categories=None), max_size=9) | st.just("\\ud800"), st.lists))
def test_half_a_character_is_found_wherever_it_stands(value: Any) -> None:
    parsed = json.loads(json.dumps(value))
    written = json.dumps(parsed, ensure_ascii=False)

    assert (find_lone_surrogate(parsed) is not None) == any("\ud800" <= one <= "\udfff" for one in written)


def test_ids_of_requests_cannot_forge_lines_of_the_log(served: Served) -> None:
    forged = "2026-01-01 00:00:00,000 ERROR root: forged"
    id_ = f"1\r\n{forged}\x1b[2J\u2028\u202e\x9b"
    post(served, "/a2a", {"jsonrpc": "2.0", "id": id_, "method": "GetTask", "params": {"id": id_}})
    post(served, "/a2a", {"jsonrpc": "2.0", "id": id_, "method": f"no{id_}", "params": {}})

    eventually(lambda: "forged" in served.log.read_text())
    log = served.log.read_text()
    lines = [line for line in re.split("[\n\r\x85\u2028\u2029]", log) if "forged" in line]
    assert ([line for line in lines if line.startswith(forged)], re.findall("[\x1b\x9b\u2028\u202e]", log)) == ([], [])
