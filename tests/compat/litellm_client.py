"""Responses of a server to litellm's `responses`, and to `completion` over its bridge, as JSON: URL, key."""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm

BOTH = '!call look_up {"key": "k"}\n!call paint {"color": "red"}'
COLOR = {"type": "object", "properties": {"color": {"type": "string"}}}
PAINT = {"type": "function", "function": {"name": "paint", "parameters": COLOR}}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SHAPE = {"type": "json_schema", "json_schema": {"name": "place", "schema": CITY}}


def main(url: str, key: str) -> None:
    server = {"api_base": f"{url}/v1", "api_key": key}

    def ask(content: Any, **options: Any) -> Any:
        return litellm.responses(model="openai/parrot", input=content, **server, **options)

    def chat(*messages: Any, **options: Any) -> Any:
        return litellm.completion(model="openai/responses/parrot", messages=list(messages), **server, **options)

    first = ask("one")
    order = {"role": "user", "content": BOTH}
    # The bridge makes a choice of each item.
    message = chat(order, tools=[PAINT]).choices[-1].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "painted"}
    parts = chat({"role": "user", "content": "hello there"}, stream=True)
    told = {
        "whole": text_of(first),
        "streamed": [str(event.type.value) for event in ask("hello", stream=True)][-1],
        "second turn": text_of(ask("two", previous_response_id=first.id)),
        "bridged": "".join(part.choices[0].delta.content or "" for part in parts),
        "handed back": chat(order, message.model_dump(), result, tools=[PAINT])
        .choices[0]
        .message.content.partition("; ")[2],
        "structured": json.loads(
            chat({"role": "user", "content": '!json Here: {"city": "Bergen"}'}, response_format=SHAPE)
            .choices[0]
            .message.content
        ),
    }
    json.dump(told, sys.stdout)


def text_of(response: Any) -> str:
    return str(response.output[0].content[0].text)


main(*sys.argv[1:])
