"""Responses fit the types that the official clients publish but do not check."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import TypeAdapter

from tests.server.process import Served

ORDERS = ["hello", 'It goes on.\n!call paint {"color": "red"}\n!call paint {"color": "blue"}', "!length"]
PARAMETERS = {"type": "object", "properties": {"color": {"type": "string"}}}
OPENAI = {"tools": [{"type": "function", "function": {"name": "paint", "parameters": PARAMETERS}}]}
ANTHROPIC = {"tools": [{"name": "paint", "input_schema": PARAMETERS}], "max_tokens": 9}


def chat_body(order: str) -> dict[str, Any]:
    return {"model": "parrot", "messages": [{"role": "user", "content": order}]}


def events(text: str) -> list[Any]:
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(one) for one in data if one != "[DONE]"]


@pytest.mark.parametrize("order", ORDERS)
def test_completions_fit(served: Served, order: str) -> None:
    body = {**chat_body(order), **OPENAI}
    with served.http() as http:
        whole = http.post("/v1/chat/completions", json=body).json()
        streamed = http.post(
            "/v1/chat/completions", json={**body, "stream": True, "stream_options": {"include_usage": True}}
        )

    ChatCompletion.model_validate(whole, strict=True)
    chunks = [ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in events(streamed.text)]
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("order", ORDERS)
def test_messages_fit(served: Served, order: str) -> None:
    body = {**chat_body(order), **ANTHROPIC}
    with served.http() as http:
        whole = http.post("/v1/messages", json=body).json()
        streamed = http.post("/v1/messages", json={**body, "stream": True})

    Message.model_validate(whole, strict=True)
    # A ping is in the stream that is published, and in no type of it.
    told = [event for event in events(streamed.text) if event["type"] != "ping"]
    kinds: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    assert [kinds.validate_python(event, strict=True).type for event in told] == [event["type"] for event in told]


def test_models_fit(served: Served) -> None:
    with served.http() as http:
        listed = http.get("/v1/models").json()["data"]

    for model in listed:
        openai.types.Model.model_validate(model, strict=True)
        TypeAdapter(anthropic.types.ModelInfo).validate_json(json.dumps(model), strict=True)
    assert [model["id"] for model in listed] == ["parrot"]
