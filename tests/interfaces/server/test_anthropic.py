"""Anthropic's own client against a real server."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest

from tests.interfaces.server.process import Served
from tests.support.chat_client import ODD, PIXEL


def user(text: Any) -> Any:
    return {"role": "user", "content": text}


def ask(client: anthropic.Anthropic, *messages: Any, **options: Any) -> Any:
    given: dict[str, Any] = {"model": "parrot", "max_tokens": 100, **options}
    return client.messages.create(messages=list(messages), **given)


def test_an_answer_arrives_intact_with_its_usage(anthropic_client: anthropic.Anthropic) -> None:
    answer = ask(anthropic_client, user(ODD))

    assert answer.model_dump(include={"type", "role", "stop_reason", "stop_sequence"}) == {
        "type": "message",
        "role": "assistant",
        "stop_reason": "end_turn",
        "stop_sequence": None,
    }
    assert [(block.type, block.text) for block in answer.content] == [("text", f"You said: {ODD}")]
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (20, 10)


def test_a_stream_has_the_events_that_the_api_publishes(anthropic_client: anthropic.Anthropic, served: Served) -> None:
    body = {"model": "parrot", "max_tokens": 9, "messages": [user(ODD)], "stream": True}
    with served.http() as http:
        lines = http.post("/v1/messages", json=body).text.splitlines()
    with anthropic_client.messages.stream(model="parrot", max_tokens=9, messages=[user(ODD)]) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()

    events = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    once = [event for i, event in enumerate(events) if event != "content_block_delta" or events[i - 1] != event]
    assert once == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert (text, final.stop_reason, final.usage.output_tokens) == (f"You said: {ODD}", "end_turn", 10)


def test_the_options_reach_the_model(anthropic_client: anthropic.Anthropic) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    answer = ask(
        anthropic_client,
        user([{"type": "text", "text": "!options"}, image]),
        system=[{"type": "text", "text": "Be brief."}],
        extra_body={"temperature": 0.5, "top_p": 0.25},
        stop_sequences=["END"],
    )

    seen = json.loads(answer.content[0].text)
    assert seen["options"] == {
        "temperature": 0.5,
        "max_tokens": 100,
        "top_p": 0.25,
        "stop": ["END"],
    }
    assert ("Be brief." in seen["system"][0], seen["blocks"]) == (True, ["text", "image"])


@pytest.mark.parametrize("beta", [False, True], ids=["output_config", "output_format"])
def test_an_answer_has_the_shape_that_was_asked_for(anthropic_client: anthropic.Anthropic, beta: bool) -> None:
    properties = {"city": {"type": "string"}}
    shape = {"type": "json_schema", "schema": {"type": "object", "properties": properties, "required": ["city"]}}
    # Clients of the time when this was a beta name it by itself.
    given = {"output_format": shape} if beta else {"output_config": {"format": shape}}
    answer = ask(anthropic_client, user('!json Here: {"city": "Bergen"}'), extra_body=given)

    assert json.loads(answer.content[0].text) == {"city": "Bergen"}


def test_a_system_message_among_others_is_an_instruction(
    anthropic_client: anthropic.Anthropic,
) -> None:
    messages: Any = [
        user("hi"),
        {"role": "assistant", "content": "hello"},
        {"role": "system", "content": "Now in rhymes."},
    ]
    answer = ask(anthropic_client, *messages, user("!options"), system="Be brief.")

    assert json.loads(answer.content[0].text)["system"][0].split("\n\n")[1:3] == ["Be brief.", "Now in rhymes."]


def test_a_truncated_reply_has_its_finish_reason(anthropic_client: anthropic.Anthropic) -> None:
    assert ask(anthropic_client, user("!length")).stop_reason == "max_tokens"


def test_tokens_are_counted_without_asking_the_model(anthropic_client: anthropic.Anthropic) -> None:
    short = anthropic_client.messages.count_tokens(model="parrot", messages=[user("hi")]).input_tokens
    long = anthropic_client.messages.count_tokens(model="parrot", messages=[user("hi " * 400)]).input_tokens

    assert (short > 0, long > 200) == (True, True)


def test_models_are_listed_and_described(anthropic_client: anthropic.Anthropic) -> None:
    [listed] = anthropic_client.models.list()
    described = anthropic_client.models.retrieve("parrot")

    assert (described, listed.id, listed.type, listed.lifecycle, listed.display_name) == (
        listed,
        "parrot",
        "model",
        "active",
        "Says it again.",
    )


def test_progress_as_a_field_is_in_pings(served: Served) -> None:
    body = {"model": "parrot", "max_tokens": 9, "messages": [user('!call look_up {"key": "k"}')], "stream": True}
    with served.http() as http:
        fields = http.post("/v1/messages", json=body, headers={"X-Progress": "field"}).text
        comments = http.post("/v1/messages", json=body).text

    data = [json.loads(line[6:]) for line in fields.splitlines() if line.startswith("data: ")]
    progress = {"type": "progress", "step": 1, "action": "tool_call", "target": "look_up"}
    assert [one for one in data if "progress" in one] == [{"type": "ping", "progress": progress}]
    assert [json.loads(line[11:]) for line in comments.splitlines() if line.startswith(": progress ")] == [progress]


def test_errors_have_the_apis_own_shape(anthropic_client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        ask(anthropic_client, user("hi"), model="claude")
    with pytest.raises(anthropic.BadRequestError) as malformed:
        ask(anthropic_client, {"role": "assistant", "content": "hi"})
    with pytest.raises(anthropic.BadRequestError) as failed:
        ask(anthropic_client, user("!fail auth"), stream=True)

    bodies: list[Any] = [error.value.body for error in (unknown, malformed, failed)]
    assert [(body["type"], body["error"]["type"]) for body in bodies] == [
        ("error", "not_found_error"),
        ("error", "invalid_request_error"),
        ("error", "api_error"),
    ]
    assert [body["error"].get("category") for body in bodies] == [None, None, "auth"]
    assert failed.value.status_code == 400


def test_an_error_in_mid_stream_is_an_error_event(anthropic_client: anthropic.Anthropic) -> None:
    texts: list[str] = []
    with (
        pytest.raises(anthropic.APIStatusError, match="provider refused this server"),
        anthropic_client.messages.stream(model="parrot", max_tokens=9, messages=[user("one …break two")]) as stream,
    ):
        texts.extend(stream.text_stream)

    assert "".join(texts) == "You said: one …break"


@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_answer_is_a_fault_of_the_model(anthropic_client: anthropic.Anthropic, stream: bool) -> None:
    with pytest.raises(anthropic.InternalServerError) as error:
        list(ask(anthropic_client, user("!empty"), stream=stream))

    body: Any = error.value.body
    assert (error.value.status_code, error.value.response.headers["x-should-retry"], body["error"]) == (
        502,
        "false",
        {
            "type": "api_error",
            "message": "The model gave an empty answer twice; send the request again, or with other words.",
            "category": "empty_answer",
        },
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("thinking", [{"type": "adaptive"}, {"type": "enabled", "budget_tokens": 1024}])
def test_reasoning_is_a_block_of_its_own_if_thinking_is_on(
    anthropic_client: anthropic.Anthropic, thinking: Any, stream: bool
) -> None:
    options: Any = {"model": "parrot", "max_tokens": 9, "messages": [user("!think it over")], "thinking": thinking}
    shown: Any
    if stream:
        with anthropic_client.messages.stream(**options) as events:
            shown = events.get_final_message()
    else:
        shown = anthropic_client.messages.create(**options)
    # A client sends the block back, where it is ignored.
    history = [*options["messages"], {"role": "assistant", "content": shown.content}, user("thanks")]
    again = anthropic_client.messages.create(**options | {"messages": history})

    assert [block.model_dump(include={"type", "text", "thinking"}) for block in shown.content] == [
        {"type": "thinking", "thinking": "it over"},
        {"type": "text", "text": shown.content[-1].text},
    ]
    assert again.stop_reason == "end_turn"


@pytest.mark.parametrize("thinking", [None, {"type": "disabled"}, {"type": "adaptive", "display": "omitted"}])
def test_reasoning_stays_out_of_an_answer_without_thinking(
    anthropic_client: anthropic.Anthropic, thinking: Any
) -> None:
    given = {"thinking": thinking} if thinking else {}
    answer = ask(anthropic_client, user("!think it over"), **given)

    assert [block.type for block in answer.content] == ["text"]
