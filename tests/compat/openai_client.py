"""Responses of a server to OpenAI's client, as JSON. Run in the environment of the client's version: URL, key."""

from __future__ import annotations

import json
import sys
from typing import Any

import openai

from tests.support.compat import COLOR_SCHEMA, ONE_OF_EACH, results, write

PAINT: Any = {"type": "function", "function": {"name": "paint", "parameters": COLOR_SCHEMA}}


def main(url: str, key: str) -> None:
    client: Any = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    stranger: Any = openai.OpenAI(base_url=f"{url}/v1", api_key="nobody", max_retries=0)
    report = {
        "whole": whole(client),
        "streamed": streamed(client, "hello there"),
        "handed back": handed_back(client),
        "streamed call": streamed(client, '!call paint {"color": "red"}', tools=[PAINT]),
        "models": [model.id for model in client.models.list().data],
        "unknown model": refused(client, "banana"),
        "stranger": refused(stranger, "parrot"),
        "in mid-stream": broken(client),
    }
    write(report)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def whole(client: Any) -> list[Any]:
    answer = client.chat.completions.create(model="parrot", messages=[user("hello")])
    usage = answer.usage
    numbers = [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens]
    return [answer.choices[0].message.content, answer.choices[0].finish_reason, numbers]


def streamed(client: Any, text: str, **options: Any) -> list[Any]:
    received, finish, calls = "", None, []
    for chunk in client.chat.completions.create(model="parrot", messages=[user(text)], stream=True, **options):
        choice = chunk.choices[0]
        received += choice.delta.content or ""
        calls += [[call.function.name, json.loads(call.function.arguments)] for call in choice.delta.tool_calls or []]
        finish = choice.finish_reason or finish
    return [received, finish, calls]


def handed_back(client: Any) -> list[Any]:
    messages: list[Any] = [user(ONE_OF_EACH)]
    first = client.chat.completions.create(model="parrot", messages=messages, tools=[PAINT]).choices[0]
    [call] = first.message.tool_calls
    messages += [
        first.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "painted"},
    ]
    second = client.chat.completions.create(model="parrot", messages=messages, tools=[PAINT]).choices[0]
    called = [call.function.name, json.loads(call.function.arguments)]
    return [first.finish_reason, called, second.finish_reason, results(second.message.content)]


def refused(client: Any, model: str) -> list[Any]:
    try:
        client.chat.completions.create(model=model, messages=[user("hello")])
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.body]
    return []


def broken(client: Any) -> list[Any]:
    received = ""
    try:
        for chunk in client.chat.completions.create(model="parrot", messages=[user("one …break two")], stream=True):
            received += chunk.choices[0].delta.content or ""
    except openai.APIError as caught:
        error: Any = caught
        return [received, type(error).__name__, error.body["message"]]
    return [received]


main(*sys.argv[1:])
