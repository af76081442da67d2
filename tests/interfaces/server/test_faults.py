"""Validation errors name the client's fields, and no internal ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interfaces.server.process import Served

OPENAI, ANTHROPIC = "/v1/chat/completions", "/v1/messages"
IMAGE = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "x"}, {"type": "audio"}]}
BLOCKS = (
    "Input should be 'text', 'image', 'document', 'search_result', 'tool_reference', 'tool_use', 'tool_result', "
    "'thinking', 'redacted_thinking', or the call or result of a provider's tool"
)


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (
            OPENAI,
            user([{"type": "x"}]),
            "messages.0.content.0.type: Input should be 'text', 'image_url', 'file' or 'refusal'",
        ),
        (
            OPENAI,
            user(7),
            "messages.0.content: Input should be a valid string; messages.0.content: Input should be a valid list",
        ),
        (
            OPENAI,
            {**user("hi"), "tool_choice": {"type": "custom", "function": {"name": "x"}}},
            "tool_choice.type: Input should be 'function'",
        ),
        (
            OPENAI,
            {**user([{"type": "x"}]), "n": 2},
            "messages.0.content.0.type: Input should be 'text', 'image_url', 'file' or 'refusal'; n: Input should be 1",
        ),
        (ANTHROPIC, user([{"type": "audio"}]), f"messages.0.content.0.type: {BLOCKS}"),
        (ANTHROPIC, user([IMAGE]), f"messages.0.content.0.content.1.type: {BLOCKS}"),
    ],
)
def test_a_fault_names_its_field(served: Served, path: str, fields: dict[str, Any], message: str) -> None:
    with served.http() as http:
        answer = http.post(path, json={"model": "parrot", "max_tokens": 9, **fields})

    assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)


def test_the_first_field_is_named_for_openais_clients(served: Served) -> None:
    with served.http() as http:
        body = {"model": "parrot", **user([{"type": "x"}])}
        answers = [
            http.post(OPENAI, json=body),
            http.post(OPENAI, json={**body, **user("x")}, headers={"X-Session-Id": "a b"}),
            http.post(OPENAI, content=b"{", headers={"content-type": "application/json"}),
        ]

    assert [answer.json()["error"]["param"] for answer in answers] == [
        "messages.0.content.0.type",
        "X-Session-Id",
        None,
    ]
