"""Documents in messages of both APIs."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest

from tests.interfaces.server.process import Served

PDF = "JVBERi0xLjQ="
ORDER = {"type": "text", "text": "!options"}


def user(*parts: Any) -> Any:
    return [{"role": "user", "content": list(parts)}]


def test_a_file_reaches_the_model(openai_client: openai.OpenAI) -> None:
    part = {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}}
    answer = openai_client.chat.completions.create(model="parrot", messages=user(ORDER, part))

    assert json.loads(answer.choices[0].message.content or "")["blocks"] == ["text", "file"]


def test_a_document_reaches_the_model_as_bytes_or_as_text(anthropic_client: anthropic.Anthropic) -> None:
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}}
    note = {"type": "document", "title": "Note", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}
    answer: Any = anthropic_client.messages.create(model="parrot", max_tokens=9, messages=user(ORDER, pdf, note))

    assert json.loads(answer.content[0].text)["blocks"] == ["text", "file", "text"]


def test_a_document_is_among_what_a_tool_brings(anthropic_client: anthropic.Anthropic) -> None:
    note = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "painted"}}
    messages: Any = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "paint", "input": {}}]},
        *user({"type": "tool_result", "tool_use_id": "c1", "content": [note]}),
    ]
    answer: Any = anthropic_client.messages.create(model="parrot", max_tokens=9, messages=messages)

    assert answer.content[0].text == "You said: go; it said: painted"


@pytest.mark.parametrize(
    ("path", "part", "message"),
    [
        (
            "/v1/chat/completions",
            {"type": "file", "file": {"file_id": "file-1"}},
            "A file is given by file_data: a data: URL with base64.",
        ),
        (
            "/v1/chat/completions",
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,@"}},
            "A document's data are no valid base64.",
        ),
        (
            "/v1/messages",
            {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}},
            "A document is given by its bytes in base64, or as text.",
        ),
        ("/v1/messages", {"type": "document"}, "A block of type document has no source."),
        (
            "/v1/messages",
            {"type": "image", "source": {"type": "text", "data": "x"}},
            "An image is given by its address, or by its bytes in base64.",
        ),
    ],
)
def test_an_invalid_document_is_refused(served: Served, path: str, part: dict[str, Any], message: str) -> None:
    with served.http() as http:
        answer = http.post(path, json={"model": "parrot", "max_tokens": 9, "messages": user(part)})

    assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)
