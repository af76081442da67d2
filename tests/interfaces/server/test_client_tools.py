"""Client tools: their calls are returned to the client, and the next request continues with the results."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest

from tests.interfaces.server.process import Served

MIXED = '!call look_up {"key": "k"}\n!call paint {"color": "red"}\n!call paint {"color": "blue"}'
PAINT = {
    "name": "paint",
    "description": "Paint the caller's house.",
    "parameters": {"type": "object", "properties": {"color": {"type": "string"}}},
}
TOOLS: Any = [{"type": "function", "function": PAINT}]


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def ask(client: openai.OpenAI, messages: list[Any], **options: Any) -> Any:
    return client.chat.completions.create(model="parrot", messages=messages, **{"tools": TOOLS, **options})


def results(message: Any) -> list[Any]:
    return [
        {"role": "tool", "tool_call_id": call.id, "content": f"painted {json.loads(call.function.arguments)['color']}"}
        for call in message.tool_calls
    ]


def event_types(served: Served, session: str) -> list[str]:
    with served.http() as http:
        return [event["type"] for event in http.get(f"/memory/sessions/{session}/events").json()["events"]]


@pytest.mark.parametrize("session", [None, "tools-kept"])
def test_a_mixed_wave_resumes_with_the_clients_results(
    openai_client: openai.OpenAI, served: Served, session: str | None
) -> None:
    headers = {"X-Session-Id": session} if session else {}
    first = ask(openai_client, [user(MIXED)], extra_headers=headers).choices[0]
    answers = results(first.message)
    messages = [user(MIXED), first.message.model_dump(exclude_none=True), *answers]
    second = ask(openai_client, messages, extra_headers=headers).choices[0]

    assert (first.finish_reason, [json.loads(call.function.arguments) for call in first.message.tool_calls]) == (
        "tool_calls",
        [{"color": "red"}, {"color": "blue"}],
    )
    assert second.finish_reason == "stop"
    assert second.message.content.endswith(
        "look_up said: the value of k; paint said: painted red; paint said: painted blue"
    )
    if session:
        assert event_types(served, session) == [
            "user_message",
            "status",
            "plan",
            *["tool_call"] * 3,
            *["tool_result"] * 3,
            "plan",
            "agent_response",
            "status",
        ]


def test_a_stream_hands_calls_back_and_counts_only_its_own_tokens(openai_client: openai.OpenAI) -> None:
    messages = [user('!call paint {"color": "red"}')]
    chunks = list(ask(openai_client, messages, stream=True, stream_options={"include_usage": True}))
    calls = [call for chunk in chunks if chunk.choices for call in chunk.choices[0].delta.tool_calls or []]
    called = {"role": "assistant", "tool_calls": [call.model_dump(exclude={"index"}) for call in calls]}
    result = {"role": "tool", "tool_call_id": calls[0].id, "content": "done"}
    second = ask(openai_client, [*messages, called, result])

    assert [(call.index, call.function.name, call.function.arguments) for call in calls] == [
        (0, "paint", '{"color": "red"}')
    ]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
    assert (chunks[-1].usage.total_tokens, second.usage.total_tokens) == (15, 30)


def test_two_waves_of_the_callers_tools(openai_client: openai.OpenAI) -> None:
    messages = [user('!call paint {"color": "red"}\n!then paint {"color": "blue"}')]
    ids: list[str] = []
    for _ in range(2):
        choice = ask(openai_client, messages).choices[0]
        ids += [call.id for call in choice.message.tool_calls]
        messages += [choice.message.model_dump(exclude_none=True), *results(choice.message)]
    last = ask(openai_client, messages).choices[0]

    assert (len(set(ids)), last.finish_reason) == (2, "stop")
    assert last.message.content.endswith("paint said: painted red; paint said: painted blue")


def test_results_of_an_unknown_pending_request_are_answered_from_its_history(openai_client: openai.OpenAI) -> None:
    call = {"id": "call_" + "0" * 32, "type": "function", "function": {"name": "paint", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "painted green"}
    answer = ask(openai_client, [user("go"), {"role": "assistant", "tool_calls": [call]}, result])

    assert answer.choices[0].message.content == "You said: go; it said: painted green"


def test_a_pending_request_is_gone_once_it_is_answered(openai_client: openai.OpenAI) -> None:
    messages = [user('!call look_up {"key": "k"}\n!call paint {"color": "red"}')]
    choice = ask(openai_client, messages).choices[0]
    messages += [choice.message.model_dump(exclude_none=True), *results(choice.message)]
    answers = [ask(openai_client, messages).choices[0].message.content for _ in range(2)]

    # The second is composed from the request's own history, which lacks the result of the server's tool.
    assert ["look_up said" in answer for answer in answers] == [True, False]


def test_the_callers_tools_are_called_one_at_a_time_on_request(openai_client: openai.OpenAI) -> None:
    choice = ask(openai_client, [user(MIXED)], parallel_tool_calls=False).choices[0]
    messages = [user(MIXED), choice.message.model_dump(exclude_none=True), *results(choice.message)]
    answer = ask(openai_client, messages, parallel_tool_calls=False).choices[0].message.content

    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [{"color": "red"}]
    assert answer.endswith(
        "look_up said: the value of k; paint said: painted red; paint said: It did not run: tools of this kind are "
        "called one at a time. Wait for the other's result, and call this one again if it is still wanted."
    )


def test_client_tools_work_over_the_messages_api(anthropic_client: anthropic.Anthropic) -> None:
    tool: Any = {"name": "paint", "input_schema": PAINT["parameters"]}
    choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
    answer = anthropic_client.messages.create(
        model="parrot", max_tokens=50, messages=[user(MIXED)], tools=[tool], tool_choice=choice
    )

    assert [block.input for block in answer.content if block.type == "tool_use"] == [{"color": "red"}]


def test_the_anthropic_tool_runner_completes_a_mixed_wave(anthropic_client: anthropic.Anthropic) -> None:
    @anthropic.beta_tool
    def paint(color: str) -> str:
        """Paint."""
        return f"painted {color}"

    runner = anthropic_client.beta.messages.tool_runner(
        model="parrot", max_tokens=50, messages=[user(MIXED)], tools=[paint]
    )
    [block] = runner.until_done().content

    assert block.type == "text"
    assert block.text.endswith("look_up said: the value of k; paint said: painted red; paint said: painted blue")


def test_text_with_tool_results_reaches_the_model(anthropic_client: anthropic.Anthropic) -> None:
    tool: Any = {"name": "paint", "input_schema": PAINT["parameters"]}
    given: dict[str, Any] = {"model": "parrot", "max_tokens": 50, "tools": [tool]}
    order = user('!call look_up {"key": "k"}\n!call paint {"color": "red"}')
    first = anthropic_client.messages.create(messages=[order], **given)
    [call] = [block for block in first.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "no paint left", "is_error": True}
    words = {"type": "text", "text": "Leave it then."}
    history: list[Any] = [order, {"role": "assistant", "content": first.content}, user([result, words])]  # type: ignore[arg-type]
    second = anthropic_client.messages.create(messages=history, **given)

    assert (first.stop_reason, call.name, call.input) == ("tool_use", "paint", {"color": "red"})
    text = "".join(block.text for block in second.content if block.type == "text")
    assert ("look_up said: the value of k" in text, "no paint left" in text, "Leave it then." in text) == (True,) * 3


def test_a_tool_choice_forces_the_call_or_forbids_it(openai_client: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "paint"}}
    order = [user('!call paint {"color": "red"}')]
    forced = ask(openai_client, order, tool_choice=named).choices[0]
    forbidden = ask(openai_client, order, tool_choice="none").choices[0]

    assert (forced.finish_reason, forbidden.finish_reason) == ("tool_calls", "stop")


@pytest.mark.parametrize("options", [{"tool_choice": "none"}, {"tools": openai.omit}], ids=["none", "left out"])
@pytest.mark.parametrize("session", [None, "withdrawn"])
def test_a_tool_that_is_not_on_offer_any_more_is_not_called(
    openai_client: openai.OpenAI, session: str | None, options: dict[str, Any]
) -> None:
    headers = {"X-Session-Id": "-".join([session, *options])} if session else {}
    given: dict[str, Any] = {"extra_headers": headers}
    order = '!call paint {"color": "red"}\n!then paint {"color": "blue"}'
    first = ask(openai_client, [user(order)], **given).choices[0].message
    messages = [user(order), first.model_dump(exclude_none=True), *results(first)]
    second = ask(openai_client, messages, **given, **options).choices[0]

    error = "paint did not run: it is no longer offered. Answer without it."
    assert (second.finish_reason, second.message.content) == (
        "stop",
        f"I call.\n\nYou said: {order}; paint said: painted red; paint said: {error}",
    )


@pytest.mark.parametrize(
    ("messages", "options", "message"),
    [
        (
            [user("hi")],
            {"tools": [{"type": "function", "function": {**PAINT, "name": "look_up"}}]},
            "Two tools are called 'look_up'. Rename one of them.",
        ),
        (
            [user("hi"), {"role": "tool", "tool_call_id": "c9", "content": "x"}],
            {},
            "The result 'c9' answers no call before it.",
        ),
        (
            [
                user("hi"),
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "paint", "arguments": "{}"}}],
                },
                user("and?"),
            ],
            {},
            "These calls have no result right behind them: c1.",
        ),
    ],
)
def test_invalid_client_tool_messages_are_refused(
    openai_client: openai.OpenAI, messages: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        ask(openai_client, messages, **options)

    assert error.value.body["message"] == message  # type: ignore[index]
