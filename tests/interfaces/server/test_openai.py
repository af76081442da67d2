"""OpenAI's own client against a real server."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.interfaces.server.process import Served
from tests.support.chat_client import ODD, PIXEL


def user(text: Any) -> Any:
    return {"role": "user", "content": text}


def ask(client: openai.OpenAI, *messages: Any, **options: Any) -> Any:
    return client.chat.completions.create(model="parrot", messages=list(messages), **options)


def test_an_answer_arrives_intact_with_its_usage(openai_client: openai.OpenAI) -> None:
    answer = ask(openai_client, user(ODD))

    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason, choice.message.tool_calls) == (
        f"You said: {ODD}",
        "stop",
        None,
    )
    assert answer.usage.model_dump(include={"prompt_tokens", "completion_tokens", "total_tokens"}) == {
        "prompt_tokens": 20,
        "completion_tokens": 10,
        "total_tokens": 30,
    }


def test_a_stream_adds_up_to_the_answer_and_ends_in_its_usage(openai_client: openai.OpenAI) -> None:
    chunks = list(ask(openai_client, user(ODD), stream=True, stream_options={"include_usage": True}))

    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    finish = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert ("".join(texts), finish[-1], set(finish[:-1])) == (f"You said: {ODD}", "stop", {None})
    assert [chunk.usage.total_tokens if chunk.usage else None for chunk in chunks][-2:] == [None, 30]


def test_a_request_without_a_session_stores_nothing(openai_client: openai.OpenAI, served: Served) -> None:
    with served.http() as http:
        before = http.get("/memory/sessions").json()
        answer = ask(openai_client, user("one"), {"role": "assistant", "content": "yes"}, user("two"))
        after = http.get("/memory/sessions").json()

    assert (answer.choices[0].message.content, after) == ("You said: one / two", before)


def test_the_options_reach_the_model(openai_client: openai.OpenAI) -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    answer = ask(
        openai_client,
        {"role": "system", "content": "Be brief."},
        user([{"type": "text", "text": "!options"}, image]),
        temperature=0.5,
        max_tokens=77,
        top_p=0.25,
        stop=["END"],
        reasoning_effort="low",
    )

    seen = json.loads(answer.choices[0].message.content)
    assert seen["options"] == {
        "temperature": 0.5,
        "max_tokens": 77,
        "top_p": 0.25,
        "stop": ["END"],
        "reasoning_effort": "low",
    }
    assert ("Be brief." in seen["system"][0], seen["blocks"]) == (True, ["text", "image"])


@pytest.mark.parametrize(
    ("before", "content"),
    [([], "who next?"), ([user("one"), {"role": "assistant", "content": "two"}], "one / who next?")],
    ids=["alone", "behind the assistant"],
)
@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_final_system_message_is_answered_if_alone(
    openai_client: openai.OpenAI, role: str, before: list[Any], content: str
) -> None:
    answer = ask(
        openai_client, {"role": "system", "content": "Be brief."}, *before, {"role": role, "content": "who next?"}
    )

    assert answer.choices[0].message.content == f"You said: {content}"


def test_a_system_message_behind_the_users_is_an_instruction(openai_client: openai.OpenAI) -> None:
    answer = ask(openai_client, user("!options"), {"role": "system", "content": "Be brief."})

    assert json.loads(answer.choices[0].message.content)["system"][0].split("\n\n")[1] == "Be brief."


def test_zero_is_a_valid_option_value(openai_client: openai.OpenAI) -> None:
    answer = ask(openai_client, user("!options"), temperature=0, top_p=0)

    assert json.loads(answer.choices[0].message.content)["options"] == {
        "temperature": 0,
        "top_p": 0,
        "stop": None,
    }


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_has_the_shape_that_was_asked_for(openai_client: openai.OpenAI, stream: bool) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    shape: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
    given = ask(openai_client, user('!json Here: {"city": "Bergen"}'), response_format=shape, stream=stream)

    content = (
        "".join(chunk.choices[0].delta.content or "" for chunk in given) if stream else given.choices[0].message.content
    )
    assert json.loads(content) == {"city": "Bergen"}


def test_a_truncated_reply_has_its_finish_reason(openai_client: openai.OpenAI) -> None:
    assert ask(openai_client, user("!length")).choices[0].finish_reason == "length"


def test_server_tools_run_without_being_returned(openai_client: openai.OpenAI) -> None:
    choice = ask(openai_client, user('!call look_up {"key": "k"}')).choices[0]

    assert (choice.message.content.endswith("look_up said: the value of k"), choice.message.tool_calls) == (True, None)


def test_progress_is_in_comments_or_in_a_field_and_never_in_the_content(served: Served) -> None:
    body = {"model": "parrot", "messages": [user('!call look_up {"key": "k"}')]}
    progress = {"type": "progress", "step": 1, "action": "tool_call", "target": "look_up"}
    with served.http() as http:
        field = {"X-Progress": "field"}
        comments = http.post("/v1/chat/completions", json={**body, "stream": True}).text.splitlines()
        fields = http.post("/v1/chat/completions", json={**body, "stream": True}, headers=field).text
        whole = http.post("/v1/chat/completions", json=body, headers=field).json()

    reports = [line.removeprefix(": progress ") for line in comments if line.startswith(": progress ")]
    chunks = [json.loads(line[6:]) for line in fields.splitlines() if line.startswith("data: {")]
    assert [json.loads(line) for line in reports] == [progress]
    assert [chunk["progress"] for chunk in chunks if "progress" in chunk] == [progress]
    assert whole["progress"] == [progress]


def test_models_are_listed_and_described(openai_client: openai.OpenAI) -> None:
    listed = [model.id for model in openai_client.models.list()]
    assert (listed, openai_client.models.retrieve("parrot").owned_by) == (["parrot"], "graph-agent")


def test_an_unknown_model_is_not_found(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        openai_client.chat.completions.create(model="gpt-4o", messages=[user("hi")])

    assert error.value.body == {
        "message": "There is no model 'gpt-4o' here; known: parrot.",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        ("auth", 400, "model_failed"),
        ("permission", 400, "model_failed"),
        ("unknown_model", 400, "model_failed"),
        ("other", 502, "model_failed"),
        ("context_overflow", 400, "context_length_exceeded"),
    ],
)
def test_a_model_that_fails_is_an_error_with_its_category_and_without_its_secrets(
    openai_client: openai.OpenAI, stream: bool, kind: str, status: int, code: str
) -> None:
    with pytest.raises(openai.APIStatusError) as error:
        list(ask(openai_client, user(f"!fail {kind}"), stream=stream))

    body: Any = error.value.body
    assert (error.value.status_code, error.value.code, body["category"], "sk-" in str(body)) == (
        status,
        code,
        kind,
        False,
    )


def test_an_error_in_mid_stream_ends_it_as_an_error(openai_client: openai.OpenAI) -> None:
    texts: list[str] = []
    chunks = ask(openai_client, user("one …break two"), stream=True)
    with pytest.raises(openai.APIError, match=r"^The model's provider refused this server") as error:
        texts.extend(chunk.choices[0].delta.content or "" for chunk in chunks)

    body: Any = error.value.body
    assert ("".join(texts), body["category"]) == ("You said: one …break", "auth")


def test_a_failed_session_reports_its_error(openai_client: openai.OpenAI, served: Served) -> None:
    with pytest.raises(openai.APIStatusError):
        ask(openai_client, user("!fail auth"), extra_headers={"X-Session-Id": "failed-1"})

    with served.http() as http:
        info = http.get("/sessions/failed-1").json()
        path = "/memory/sessions/failed-1/events"
        events = http.get(path, params={"type": ["error", "agent_response"]}).json()["events"]
        with http.stream("GET", path, params={"follow": True, "type": ["error"]}) as stream:
            followed = next(line for line in stream.iter_lines() if line.startswith("data: "))
    again = ask(openai_client, user("hi"), extra_headers={"X-Session-Id": "failed-1"})

    assert (info["status"], info["answer"], again.choices[0].message.content) == (
        "FAILED",
        "This request failed. The model provider refused the API key (HTTP 401).",
        "You said: !fail auth / hi",
    )
    assert [event.get("message", event.get("content")) for event in events] == [
        "The model provider refused the API key (HTTP 401); check the key and the address it is sent to.",
        info["answer"],
    ]
    assert json.loads(followed.removeprefix("data: "))["message"] == events[0]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_answer_is_a_fault_of_the_model(openai_client: openai.OpenAI, stream: bool) -> None:
    with pytest.raises(openai.InternalServerError) as error:
        list(ask(openai_client, user("!empty"), stream=stream))

    assert (error.value.status_code, error.value.response.headers["x-should-retry"], error.value.body) == (
        502,
        "false",
        {
            "message": "The model gave an empty answer twice; send the request again, or with other words.",
            "type": "server_error",
            "param": None,
            "code": "model_failed",
            "category": "empty_answer",
        },
    )


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_sent_if_asked_for(openai_client: openai.OpenAI, stream: bool) -> None:
    hidden = ask(openai_client, user("!think it over"))
    shown = ask(openai_client, user("!think it over"), stream=stream, extra_body={"include_reasoning": True})
    pieces = [chunk.choices[0].delta for chunk in shown if chunk.choices] if stream else [shown.choices[0].message]

    texts = ["".join(getattr(piece, name, None) or "" for piece in pieces) for name in ("reasoning_content", "content")]
    assert (texts, hasattr(hidden.choices[0].message, "reasoning_content")) == (
        ["it over", hidden.choices[0].message.content],
        False,
    )
