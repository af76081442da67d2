"""Responses of a server to litellm's `responses`, and to `completion` over its bridge, as JSON: URL, key."""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm

from tests.support.compat import CITY, CITY_SCHEMA, COLOR_SCHEMA, ONE_OF_EACH, results, write

PAINT = {"type": "function", "function": {"name": "paint", "parameters": COLOR_SCHEMA}}
SHAPE = {"type": "json_schema", "json_schema": {"name": "place", "schema": CITY_SCHEMA}}


def main(url: str, key: str) -> None:
    server = {"api_base": f"{url}/v1", "api_key": key}

    def ask(content: Any, **options: Any) -> Any:
        return litellm.responses(model="openai/parrot", input=content, **server, **options)

    def chat(*messages: Any, **options: Any) -> Any:
        return litellm.completion(model="openai/responses/parrot", messages=list(messages), **server, **options)

    first = ask("one")
    order = {"role": "user", "content": ONE_OF_EACH}
    # The bridge makes a choice of each item.
    message = chat(order, tools=[PAINT]).choices[-1].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "painted"}
    parts = chat({"role": "user", "content": "hello there"}, stream=True)
    report = {
        "whole": text_of(first),
        "streamed": [str(event.type.value) for event in ask("hello", stream=True)][-1],
        "second turn": text_of(ask("two", previous_response_id=first.id)),
        "bridged": "".join(part.choices[0].delta.content or "" for part in parts),
        "handed back": results(chat(order, message.model_dump(), result, tools=[PAINT]).choices[0].message.content),
        "structured": json.loads(
            chat({"role": "user", "content": CITY}, response_format=SHAPE).choices[0].message.content
        ),
    }
    write(report)


def text_of(response: Any) -> str:
    return str(response.output[0].content[0].text)


main(*sys.argv[1:])
