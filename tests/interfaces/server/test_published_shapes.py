"""Responses fit the types that the official clients publish but do not check."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.conversations import Conversation, ConversationItemList
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.interfaces.server.process import Served

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
    received = [event for event in events(streamed.text) if event["type"] != "ping"]
    kinds: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    assert [kinds.validate_python(event, strict=True).type for event in received] == [
        event["type"] for event in received
    ]


RESPONSE_ORDERS = [
    *ORDERS,
    "!think it over",
    '!call look_up {"key": "k"}\n!then paint {"color": "red"}',
    '!call look_up {"wrong": "k"}',
    "one …break two",
]
RESPONSES = {
    "tools": [{"type": "function", "name": "paint", "parameters": PARAMETERS, "strict": False}],
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "metadata": {"a": "b"},
}
ENDS = {"response.completed", "response.incomplete", "response.failed"}


@pytest.mark.parametrize("shows_calls", [False, True])
@pytest.mark.parametrize("order", RESPONSE_ORDERS)
def test_responses_fit_and_their_events_build_them(served: Served, order: str, shows_calls: bool) -> None:
    body = {"model": "parrot", "input": order, **RESPONSES, "show_calls": shows_calls}
    with served.http() as http:
        whole = http.post("/v1/responses", json=body)
        received = events(http.post("/v1/responses", json={**body, "stream": True}).text)

    if whole.is_success:
        Response.model_validate(whole.json(), strict=True)
    kinds: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    assert [kinds.validate_python(event, strict=True).type for event in received] == [
        event["type"] for event in received
    ]
    assert [event["sequence_number"] for event in received] == list(range(len(received)))
    assert ([event["type"] for event in received[:2]], received[-1]["type"] in ENDS) == (
        ["response.created", "response.in_progress"],
        True,
    )
    assert built(received) == received[-1]["response"]["output"]
    if whole.is_success and shows_calls:
        assert [item["type"] for item in whole.json()["output"]] == [item["type"] for item in built(received)]


def built(received: list[Any]) -> list[Any]:
    """The output that a client builds from a stream, whose events must be in order."""
    output: list[Any] = []
    texts: dict[str, str] = {}
    for event in received:
        match event["type"]:
            case "response.output_item.added":
                assert event["output_index"] == len(output)
                output.append({"open": event["item"]["id"]})
            case "response.output_item.done":
                assert output[event["output_index"]] == {"open": event["item"]["id"]}
                output[event["output_index"]] = event["item"]
                streamed = [*texts_of(event["item"])]
                assert streamed == ([texts.pop(event["item"]["id"])] if event["item"]["id"] in texts else [])
            case kind if "item_id" in event:
                assert output[event["output_index"]] == {"open": event["item_id"]}
                texts[event["item_id"]] = texts.get(event["item_id"], "") + (
                    event["delta"] if kind.endswith(".delta") else ""
                )
    assert texts == {}
    return output


def texts_of(item: Any) -> list[str]:
    """The streamed texts of an item."""
    parts = [*item.get("content", ()), *item.get("summary", ())]
    return [str(part["text"]) for part in parts] + ([item["arguments"]] if "arguments" in item else [])


def test_stored_responses_and_conversations_fit(served: Served) -> None:
    with served.http() as http:
        conversation = http.post("/v1/conversations", json={"items": [{"role": "user", "content": "one"}]}).json()
        body = {"model": "parrot", "input": "two", "conversation": conversation["id"]}
        answer = http.post("/v1/responses", json=body).json()
        stored = http.get(f"/v1/responses/{answer['id']}").json()
        inputs = http.get(f"/v1/responses/{answer['id']}/input_items").json()
        items = http.get(f"/v1/conversations/{conversation['id']}/items").json()

    Conversation.model_validate(conversation, strict=True)
    Response.model_validate(stored, strict=True)
    ResponseItemList.model_validate(inputs, strict=True)
    ConversationItemList.model_validate(items, strict=True)
    assert (stored, [item["role"] for item in items["data"]]) == (answer, ["assistant", "user", "user"])


def test_models_fit(served: Served) -> None:
    with served.http() as http:
        listed = http.get("/v1/models").json()["data"]

    for model in listed:
        openai.types.Model.model_validate(model, strict=True)
        TypeAdapter(anthropic.types.ModelInfo).validate_json(json.dumps(model), strict=True)
    assert [model["id"] for model in listed] == ["parrot"]
