"""The estimate of a request's input tokens, against the size of the request that the model receives."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.interfaces.server.process import Served

PAINT: Any = {"type": "function", "name": "paint", "parameters": {"type": "object", "properties": {}}}
PLACE: Any = {
    "format": {"type": "json_schema", "name": "place", "schema": {"type": "object", "required": ["city"]}},
}


def counted(client: openai.OpenAI, **fields: Any) -> int:
    found = client.responses.input_tokens.count(model="parrot", **fields)
    assert found.object == "response.input_tokens"
    return found.input_tokens


def sent(client: openai.OpenAI, **fields: Any) -> int:
    """The size of the request that the model receives, by the same counter."""
    return int(client.responses.create(model="parrot", **fields).output_text)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"instructions": "Be brief, and answer in verse. " * 20, "tools": [PAINT]},
        {"tools": [PAINT], "tool_choice": "none"},
        {"input": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "!size"}]},
    ],
)
def test_the_system_prompt_the_tools_and_the_input_count(openai_client: openai.OpenAI, fields: dict[str, Any]) -> None:
    request = {"input": "!size", **fields}

    assert counted(openai_client, **request) == sent(openai_client, **request) > 100


def test_the_history_of_a_response_counts(openai_client: openai.OpenAI) -> None:
    first = openai_client.responses.create(model="parrot", input='!call look_up {"key": "k"}')
    second = openai_client.responses.create(model="parrot", input="on", previous_response_id=first.id)
    sizes = [
        (counted(openai_client, **named), sent(openai_client, **named))
        for earlier in (first, second)
        for named in [{"input": "!size", "previous_response_id": earlier.id}]
    ]

    assert [found == real for found, real in sizes] == [True, True]
    assert sizes[1] > sizes[0]


def test_the_items_of_a_conversation_count(openai_client: openai.OpenAI) -> None:
    added: Any = {"type": "message", "role": "user", "content": "This waits for the next response."}
    conversation = openai_client.conversations.create(items=[added]).id
    fields = {"input": "!size", "conversation": conversation}
    before = counted(openai_client, **fields), sent(openai_client, **fields)
    after = counted(openai_client, **fields), sent(openai_client, **fields)

    assert (before[0], after[0]) == (before[1], after[1])
    assert after > before


def test_the_results_of_calls_count(openai_client: openai.OpenAI) -> None:
    order = '!call look_up {"key": "k"}\n!call paint {}'
    first: Any = openai_client.responses.create(model="parrot", input=order, tools=[PAINT])
    [call] = [item for item in first.output if item.type == "function_call"]
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "painted " * 200}
    short: Any = {**output, "output": "painted"}
    sizes = [
        counted(openai_client, input=[each], previous_response_id=first.id, tools=[PAINT]) for each in (short, output)
    ]

    assert sizes[1] - sizes[0] == pytest.approx(199 * len("painted ") / 4, abs=2)


def test_a_count_runs_and_stores_nothing(openai_client: openai.OpenAI, served: Served) -> None:
    with served.http() as http:
        before = http.get("/memory/sessions").json()
        bare = openai_client.responses.input_tokens.count()
        format_ = counted(openai_client, input="!fail auth", text=PLACE)
        after = http.get("/memory/sessions").json()

    assert (bare.input_tokens > 50, format_ > bare.input_tokens, after) == (True, True, before)


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"model": "banana"}, openai.NotFoundError, "model"),
        ({"previous_response_id": "resp_" + "0" * 24}, openai.BadRequestError, "previous_response_id"),
        ({"conversation": "conv_" + "0" * 24}, openai.NotFoundError, "conversation"),
        ({"prompt": {"id": "p"}}, openai.BadRequestError, "prompt"),
        ({"tools": [{"type": "function", "name": "look_up"}]}, openai.BadRequestError, "tools"),
    ],
)
def test_what_has_no_response_is_not_counted(
    openai_client: openai.OpenAI, fields: Any, error: type[openai.APIStatusError], param: str
) -> None:
    with pytest.raises(error) as caught:
        openai_client.responses.input_tokens.count(input="hello", extra_body=fields)

    assert caught.value.param == param
