"""Responses of a server to what only new versions of OpenAI's client do over the Responses API, as JSON: URL, key."""

from __future__ import annotations

import sys
from typing import Any

import openai

from tests.support.compat import write


def main(url: str, key: str) -> None:
    client: Any = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    write(
        {
            "background": background(client),
            "over a WebSocket": by_socket(client),
            "compacted": compacted(client),
            "counted": counted(client),
        }
    )


def background(client: Any) -> list[Any]:
    """Leave the stream of a background response, and continue it."""
    numbers: list[int] = []
    with client.responses.create(model="parrot", input="hello there", background=True, stream=True) as stream:
        for event in stream:
            numbers.append(event.sequence_number)
            if event.type == "response.in_progress":
                break
    id_ = client.responses.create(model="parrot", input="hello", background=True).id
    with client.responses.stream(response_id=id_, starting_after=0) as stream:
        rest = [event.sequence_number for event in stream]
    return [numbers, rest[:2], stream.get_final_response().output_text, client.responses.retrieve(id_).status]


def by_socket(client: Any) -> list[Any]:
    answers: list[Any] = []
    with client.responses.connect() as connection:
        for text in ("one", "two"):
            named = {"previous_response_id": answers[-1].id} if answers else {}
            connection.response.create(model="parrot", input=text, store=False, **named)
            for event in connection:
                if event.type == "response.completed":
                    answers.append(event.response)
                    break
    return [answer.output_text for answer in answers]


def compacted(client: Any) -> list[Any]:
    found = client.responses.compact(model="parrot", input="one")
    return [found.object, [item.type for item in found.output]]


def counted(client: Any) -> list[Any]:
    """The estimated tokens, and whether the model receives as many."""
    found = client.responses.input_tokens.count(model="parrot", input="!size")
    answer = client.responses.create(model="parrot", input="!size")
    return [found.object, found.input_tokens == int(answer.output_text)]


main(*sys.argv[1:])
