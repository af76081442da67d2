"""Responses of a server to OpenAI's client over the Responses API, as JSON: URL, key."""

from __future__ import annotations

import json
import sys
from typing import Any

import openai
from pydantic import BaseModel

from tests.support.compat import CITY, CITY_SCHEMA, COLOR_SCHEMA, ONE_OF_EACH, results, write

PAINT: Any = {"type": "function", "name": "paint", "parameters": COLOR_SCHEMA}
PLACE: Any = {"format": {"type": "json_schema", "name": "place", "schema": CITY_SCHEMA}}


class Place(BaseModel):
    city: str


def main(url: str, key: str) -> None:
    client: Any = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    report = {
        "whole": whole(client),
        "streamed": streamed(client),
        "second turn": ask(client, "two", previous_response_id=ask(client, "one").id).output_text,
        "handed back": handed_back(client),
        "structured": json.loads(ask(client, CITY, text=PLACE).output_text),
        "parsed": parsed(client),
        "in mid-stream": broken(client),
    }
    write(report)


def ask(client: Any, content: Any, **options: Any) -> Any:
    return client.responses.create(model="parrot", input=content, **options)


def whole(client: Any) -> list[Any]:
    answer = ask(client, "hello")
    return [
        answer.output_text,
        answer.status,
        answer.usage.total_tokens,
        client.responses.retrieve(answer.id).id == answer.id,
    ]


def streamed(client: Any) -> list[Any]:
    text, kinds = "", []
    for event in ask(client, "hello there", stream=True):
        kinds += [event.type] if event.type not in kinds else []
        text += event.delta if event.type == "response.output_text.delta" else ""
    return [text, kinds]


def handed_back(client: Any) -> list[Any]:
    first = ask(client, ONE_OF_EACH, tools=[PAINT])
    [call] = [item for item in first.output if item.type == "function_call"]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "painted"}
    second = ask(client, [output], tools=[PAINT], previous_response_id=first.id)
    return [[call.name, json.loads(call.arguments)], results(second.output_text)]


def parsed(client: Any) -> list[Any]:
    with client.responses.stream(model="parrot", input=CITY, text_format=Place) as stream:
        kinds = [event.type for event in stream]
    whole = client.responses.parse(model="parrot", input=CITY, text_format=Place)
    return [whole.output_parsed.city, stream.get_final_response().output_parsed.city, kinds[-1]]


def broken(client: Any) -> list[Any]:
    text = ""
    try:
        for event in ask(client, "one …break two", stream=True):
            text += event.delta if event.type == "response.output_text.delta" else ""
    except openai.APIError as caught:
        return [text, caught.message]
    return [text]


main(*sys.argv[1:])
