"""Responses of a server to Anthropic's client, as JSON. Run in the environment of the client's version: URL, key."""

from __future__ import annotations

import sys
from typing import Any

import anthropic

from tests.support.compat import COLOR_SCHEMA, ONE_OF_EACH, results, write

PAINT: Any = {"name": "paint", "input_schema": COLOR_SCHEMA}


def main(url: str, key: str) -> None:
    client: Any = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)
    stranger: Any = anthropic.Anthropic(base_url=url, api_key="nobody", max_retries=0)
    report = {
        "whole": whole(client),
        "streamed": streamed(client),
        "handed back": handed_back(client),
        "unknown model": refused(client, "banana"),
        "stranger": refused(stranger, "parrot"),
    }
    write(report)


def asking(text: str, **options: Any) -> dict[str, Any]:
    return {"model": "parrot", "max_tokens": 50, "messages": [{"role": "user", "content": text}], **options}


def whole(client: Any) -> list[Any]:
    answer = client.messages.create(**asking("hello"))
    [block] = answer.content
    return [block.text, answer.stop_reason, [answer.usage.input_tokens, answer.usage.output_tokens]]


def streamed(client: Any) -> list[Any]:
    with client.messages.stream(**asking("hello there")) as stream:
        pieces = list(stream.text_stream)
        last = stream.get_final_message()
    return ["".join(pieces), last.content[0].text, last.stop_reason]


def handed_back(client: Any) -> list[Any]:
    given = asking(ONE_OF_EACH, tools=[PAINT])
    first = client.messages.create(**given)
    [call] = [block for block in first.content if block.type == "tool_use"]
    content = [block.model_dump(exclude_none=True) for block in first.content]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "painted"}
    given["messages"] += [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    second = client.messages.create(**given)
    return [first.stop_reason, [call.name, call.input], second.stop_reason, results(second.content[-1].text)]


def refused(client: Any, model: str) -> list[Any]:
    try:
        client.messages.create(**asking("hello", model=model))
    except anthropic.APIStatusError as caught:
        error: Any = caught
        return [type(error).__name__, error.status_code, error.body["error"]]
    return []


main(*sys.argv[1:])
