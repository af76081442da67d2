"""The Responses API of a real server, with OpenAI's own client: answers, chains, tools, and refused fields."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import openai
import pytest

from tests.interfaces.server.process import Served
from tests.support.chat_client import ODD, PIXEL

PAINT: Any = {
    "type": "function",
    "name": "paint",
    "parameters": {"type": "object", "properties": {"color": {"type": "string"}}},
}
MIXED = '!call look_up {"key": "k"}\n!call paint {"color": "red"}\n!call paint {"color": "blue"}'
BOTH_RESULTS = "look_up said: the value of k; paint said: painted red; paint said: painted blue"
PLACE: Any = {
    "format": {
        "type": "json_schema",
        "name": "place",
        "schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
}


def ask(client: openai.OpenAI, content: Any, **options: Any) -> Any:
    return client.responses.create(model="parrot", input=content, **options)


def outputs_of(response: Any) -> list[Any]:
    """The outputs of the calls that a response hands to the caller."""
    calls = [item for item in response.output if item.type == "function_call"]
    return [
        {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": f"painted {json.loads(call.arguments)['color']}",
        }
        for call in calls
    ]


def results(text: str) -> str:
    """The results that the parrot repeats."""
    return text.partition("; ")[2]


def items_of(response: Any) -> list[Any]:
    return [item.model_dump(exclude_none=True) for item in response.output]


def test_an_answer_arrives_intact_with_its_usage_and_is_kept(openai_client: openai.OpenAI) -> None:
    answer = ask(openai_client, ODD, metadata={"topic": "odd"}, instructions="Be brief.")
    kept = openai_client.responses.retrieve(answer.id)

    assert (answer.output_text, answer.status, answer.instructions, answer.metadata) == (
        f"You said: {ODD}",
        "completed",
        "Be brief.",
        {"topic": "odd"},
    )
    assert answer.usage.model_dump(exclude={"input_tokens_details", "output_tokens_details"}) == {
        "input_tokens": 20,
        "output_tokens": 10,
        "total_tokens": 30,
    }
    assert kept == answer


def test_a_response_continues_the_one_it_names(openai_client: openai.OpenAI, served: Served) -> None:
    first = ask(openai_client, "one")
    second = ask(openai_client, "two", previous_response_id=first.id)
    third = ask(openai_client, "three", previous_response_id=second.id)
    with served.http() as http:
        received = http.get(f"/memory/sessions/{first.id}/events", params={"type": "user_message"}).json()["events"]

    assert (third.output_text, third.previous_response_id) == ("You said: one / two / three", second.id)
    assert [event["content"] for event in received] == ["one", "two", "three"]


def test_an_older_response_is_branched(openai_client: openai.OpenAI) -> None:
    first = ask(openai_client, "one")
    left = ask(openai_client, "left", previous_response_id=first.id)
    right = ask(openai_client, "right", previous_response_id=first.id)
    further = [ask(openai_client, "on", previous_response_id=each.id).output_text for each in (left, right)]

    assert (right.output_text, further) == (
        "You said: one / right",
        ["You said: one / left / on", "You said: one / right / on"],
    )


def test_instructions_are_not_carried_over(openai_client: openai.OpenAI) -> None:
    first = ask(openai_client, "one", instructions="Be brief.")
    second = ask(openai_client, "!options", previous_response_id=first.id)

    assert "Be brief." not in json.loads(second.output_text)["system"][0]


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_is_kept_without_store(openai_client: openai.OpenAI, served: Served, stream: bool) -> None:
    first = ask(openai_client, "one")
    with served.http() as http:
        before = http.get("/memory/sessions").json()
        answer = ask(openai_client, "two", previous_response_id=first.id, store=False, stream=stream)
        if stream:
            answer = list(answer)[-1].response
        after = http.get("/memory/sessions").json()
        kept = http.get(f"/v1/responses/{answer.id}").status_code
    again = ask(openai_client, "three", previous_response_id=first.id)

    assert (answer.output_text, answer.store, after == before, kept) == ("You said: one / two", False, True, 404)
    assert again.output_text == "You said: one / three"


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_the_callers_tools_are_handed_back(openai_client: openai.OpenAI, store: bool, stream: bool) -> None:
    """The second request carries the whole history, as clients send it by default."""
    first = ask(openai_client, MIXED, tools=[PAINT], store=store, stream=stream)
    first = list(first)[-1].response if stream else first
    history = [{"role": "user", "content": MIXED}, *items_of(first), *outputs_of(first)]
    second = ask(openai_client, history, tools=[PAINT], store=store)

    calls = [(item.name, json.loads(item.arguments)) for item in first.output if item.type == "function_call"]
    assert (calls, results(second.output_text)) == (
        [("paint", {"color": "red"}), ("paint", {"color": "blue"})],
        BOTH_RESULTS,
    )


def test_outputs_continue_the_response_that_is_named(openai_client: openai.OpenAI) -> None:
    first = ask(openai_client, MIXED, tools=[PAINT])
    second = ask(openai_client, outputs_of(first), tools=[PAINT], previous_response_id=first.id)

    assert results(second.output_text) == BOTH_RESULTS


def test_a_branch_answers_the_calls_of_an_older_response(openai_client: openai.OpenAI) -> None:
    first = ask(openai_client, '!call paint {"color": "red"}', tools=[PAINT])
    answers = [
        ask(openai_client, outputs_of(first), tools=[PAINT], previous_response_id=first.id, store=store)
        for store in (True, False, True)
    ]

    assert [results(answer.output_text) for answer in answers] == [
        "paint said: painted red",
        "it said: painted red",
        "it said: painted red",
    ]


def test_references_stand_for_the_items_they_name(openai_client: openai.OpenAI) -> None:
    first = ask(openai_client, "one")
    reference: Any = {"type": "item_reference", "id": first.output[0].id}
    second = ask(openai_client, [{"role": "user", "content": "one"}, reference, {"role": "user", "content": "two"}])
    with pytest.raises(openai.NotFoundError, match="There is no item"):
        ask(openai_client, [{**reference, "id": "msg_unknown"}])

    assert second.output_text == "You said: one / two"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_has_the_shape_that_was_asked_for(openai_client: openai.OpenAI, stream: bool) -> None:
    answer = ask(openai_client, '!json Here: {"city": "Bergen"}', text=PLACE, stream=stream)
    answer = list(answer)[-1].response if stream else answer

    assert (json.loads(answer.output_text), answer.text.format.type) == ({"city": "Bergen"}, "json_schema")


def test_the_options_reach_the_model(openai_client: openai.OpenAI) -> None:
    parts: Any = [
        {"type": "input_text", "text": "!options"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"},
        {"type": "input_file", "file_data": "data:application/pdf;base64,JVBERg==", "filename": "a.pdf"},
    ]
    answer = ask(
        openai_client,
        [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": parts}],
        instructions="Be brief.",
        temperature=0.5,
        top_p=0.25,
        max_output_tokens=77,
        reasoning={"effort": "low"},
    )

    seen = json.loads(answer.output_text)
    assert {name: seen["options"][name] for name in ("temperature", "top_p", "max_tokens", "reasoning_effort")} == {
        "temperature": 0.5,
        "top_p": 0.25,
        "max_tokens": 77,
        "reasoning_effort": "low",
    }
    assert seen["blocks"] == ["text", "image", "file"]
    assert seen["system"][0].split("\n\n")[1:3] == ["Be brief.", "Be kind."]


def test_a_cut_off_answer_is_incomplete(openai_client: openai.OpenAI) -> None:
    *_, last = ask(openai_client, "!length", stream=True)

    assert (last.type, last.response.status, last.response.incomplete_details.reason) == (
        "response.incomplete",
        "incomplete",
        "max_output_tokens",
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "function", "name": "absent"}}, "tool_choice"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"generate": False}, "generate"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": True, "store": False}, "background"),
        ({"previous_response_id": "resp_1", "conversation": "c"}, "conversation"),
        ({"metadata": {"a": "b" * 513}}, "metadata.a"),
        ({"input": [{"type": "computer_call"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "http://x"}]}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "foreign"}]}, "input"),
    ],
)
def test_what_cannot_be_honoured_is_refused(served: Served, fields: dict[str, Any], param: str) -> None:
    with served.http() as http:
        answer = http.post("/v1/responses", json={"model": "parrot", "input": "hello", **fields})

    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)


def test_an_unknown_response_is_not_found(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="Previous response with id 'resp_1' not found") as caught:
        ask(openai_client, "on", previous_response_id="resp_1")
    assert caught.value.code == "previous_response_not_found"
    for send in (
        lambda: openai_client.responses.retrieve("resp_000000000000000000000000"),
        lambda: openai_client.responses.delete("resp_1"),
    ):
        with pytest.raises(openai.NotFoundError, match=r"Response with id 'resp_\d+' not found"):
            send()


def test_a_deleted_response_is_gone(openai_client: openai.OpenAI) -> None:
    first = ask(openai_client, "one")
    openai_client.responses.delete(first.id)

    with pytest.raises(openai.BadRequestError, match="not found"):
        ask(openai_client, "two", previous_response_id=first.id)


def test_the_input_items_are_listed_in_pages(openai_client: openai.OpenAI) -> None:
    history: Any = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    answer = ask(openai_client, history)
    listed: list[Any] = list(openai_client.responses.input_items.list(answer.id, limit=2, order="asc"))
    newest: list[Any] = openai_client.responses.input_items.list(answer.id, limit=1).data

    assert [item.content[0].text for item in listed] == ["one", "two", "three"]
    assert [item.content[0].text for item in newest] == ["three"]


def test_a_failing_run_is_an_error_of_its_request(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError, match="refused this server") as caught:
        ask(openai_client, "!fail x")

    assert caught.value.status_code == 400


def test_a_failure_in_mid_stream_is_raised_by_the_client(openai_client: openai.OpenAI) -> None:
    stream, text = ask(openai_client, "one …break two", stream=True), ""

    def read() -> None:
        nonlocal text
        for event in stream:
            text += event.delta if event.type == "response.output_text.delta" else ""

    with pytest.raises(openai.APIError, match="refused this server"):
        read()
    assert text == "You said: one …break"


def test_own_calls_are_items_only_if_asked_for(openai_client: openai.OpenAI) -> None:
    shown = ask(openai_client, MIXED, tools=[PAINT], extra_body={"show_calls": True})
    hidden = ask(openai_client, MIXED, tools=[PAINT])
    by_header = ask(openai_client, MIXED, extra_headers={"X-Show-Calls": "true"})

    assert [item.type for item in shown.output] == ["message", "mcp_call", "function_call", "function_call"]
    assert [item.type for item in hidden.output] == ["message", "function_call", "function_call"]
    call = shown.output[1]
    assert (call.name, json.loads(call.arguments), call.output, call.status, call.server_label) == (
        "look_up",
        {"key": "k"},
        "the value of k",
        "completed",
        "parrot",
    )
    assert "mcp_call" in [item.type for item in by_header.output]


def test_allowed_tools_limit_the_offer(openai_client: openai.OpenAI) -> None:
    other = {**PAINT, "name": "draw"}
    choice: Any = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "draw"}]}
    answer = ask(openai_client, '!call paint {"color": "red"}', tools=[PAINT, other], tool_choice=choice)

    assert "function_call" not in [item.type for item in answer.output]


def test_a_session_may_be_named_by_the_header(openai_client: openai.OpenAI, served: Served) -> None:
    named = {"X-Session-Id": "responses-by-name"}
    first = openai_client.responses.with_raw_response.create(model="parrot", input="one", extra_headers=named)
    chatted = openai_client.chat.completions.create(
        model="parrot", messages=[{"role": "user", "content": "two"}], extra_headers=named
    )
    third = ask(openai_client, "three", extra_headers=named)

    assert (first.headers["x-session-id"], chatted.choices[0].message.content, third.output_text) == (
        "responses-by-name",
        "You said: one / two",
        "You said: one / two / three",
    )


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_summarized_if_asked_for(openai_client: openai.OpenAI, stream: bool) -> None:
    hidden = ask(openai_client, "!think it over")
    shown = ask(openai_client, "!think it over", reasoning={"summary": "auto"}, stream=stream)
    events = list(shown) if stream else []
    shown = events[-1].response if stream else shown

    assert [item.type for item in hidden.output] == ["message"]
    assert [item.type for item in shown.output] == ["reasoning", "message"]
    assert shown.output[0].summary[0].text == "it over"
    pieces = [event.delta for event in events if event.type == "response.reasoning_summary_text.delta"]
    assert "".join(pieces) == ("it over" if stream else "")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reasoning", [None, {"summary": "auto"}])
def test_encrypted_reasoning_comes_back_to_the_model(
    openai_client: openai.OpenAI, reasoning: Any, stream: bool
) -> None:
    options: Any = {"store": False, "include": ["reasoning.encrypted_content"], "reasoning": reasoning}
    first = ask(openai_client, "!think it over", stream=stream, **options)
    first = list(first)[-1].response if stream else first
    history = [
        {"role": "user", "content": "!think it over"},
        *items_of(first),
        {"role": "user", "content": "!think on"},
    ]

    assert ([item.type for item in first.output], ask(openai_client, history, **options).output_text) == (
        ["reasoning", "message"],
        "I thought: it over.",
    )


def test_an_idempotency_key_repeats_the_response(openai_client: openai.OpenAI) -> None:
    key = {"Idempotency-Key": "one-of-the-responses"}
    first = ask(openai_client, MIXED, tools=[PAINT], extra_headers=key)
    again = openai_client.responses.with_raw_response.create(
        model="parrot", input=MIXED, tools=[PAINT], extra_headers=key
    )
    *_, streamed = ask(openai_client, MIXED, tools=[PAINT], extra_headers=key, stream=True)
    with pytest.raises(openai.UnprocessableEntityError, match="This Idempotency-Key belongs to a different request"):
        ask(openai_client, "another", extra_headers=key)

    assert (again.parse(), again.headers["idempotent-replayed"], streamed.response) == (first, "true", first)


def test_requests_with_one_key_at_once_are_one_input(openai_client: openai.OpenAI) -> None:
    first = ask(openai_client, "one", store=True)

    def send(_: int) -> Any:
        key = {"Idempotency-Key": "at-once"}
        return ask(openai_client, "two", previous_response_id=first.id, extra_headers=key, store=True)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(send, range(4)))
    after = ask(openai_client, "three", previous_response_id=answers[0].id, store=True)

    assert ({answer.id for answer in answers}, {answer.output_text for answer in answers}, after.output_text) == (
        {answers[0].id},
        {"You said: one / two"},
        "You said: one / two / three",
    )


@pytest.mark.parametrize("store", [True, False])
def test_a_lost_response_is_repeated_by_its_key(openai_client: openai.OpenAI, store: bool) -> None:
    """The second response to a key must have no second input, also when the first was not stored."""
    first = ask(openai_client, "one", store=True)
    key = {"Idempotency-Key": f"lost-{store}"}
    second = ask(openai_client, "two", previous_response_id=first.id, extra_headers=key, store=store)
    if store:
        openai_client.responses.delete(second.id)
    again = ask(openai_client, "two", previous_response_id=first.id, extra_headers=key, store=store)

    assert (second.output_text, again.output_text) == ("You said: one / two", "You said: one / two")


def test_a_replayed_response_has_the_usage_of_the_first(openai_client: openai.OpenAI) -> None:
    """Deleted responses are read from the session, whose usage covers the calls handed to the caller, too."""
    waiting = ask(openai_client, MIXED, tools=[PAINT])
    key = {"Idempotency-Key": "usage-of-the-first"}
    answers = []
    for _ in range(2):
        answers.append(
            ask(openai_client, outputs_of(waiting), tools=[PAINT], previous_response_id=waiting.id, extra_headers=key)
        )
        openai_client.responses.delete(answers[-1].id)

    assert (answers[1].output_text, answers[1].usage) == (answers[0].output_text, answers[0].usage)


@pytest.mark.parametrize("stream", [False, True])
def test_requests_that_continue_one_response_at_once_are_branches(openai_client: openai.OpenAI, stream: bool) -> None:
    first = ask(openai_client, "one")
    begin = Barrier(5)

    def send(text: str) -> tuple[str, str]:
        begin.wait(60)
        answer = ask(openai_client, text, previous_response_id=first.id, stream=stream)
        answer = list(answer)[-1].response if stream else answer
        return answer.output_text, ask(openai_client, "on", previous_response_id=answer.id).output_text

    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(send, "abcde"))

    assert answers == [(f"You said: one / {text}", f"You said: one / {text} / on") for text in "abcde"]


@pytest.mark.parametrize("chained", [False, True])
def test_two_outputs_of_one_call_are_refused(openai_client: openai.OpenAI, chained: bool) -> None:
    first = ask(openai_client, MIXED, tools=[PAINT])
    given = outputs_of(first)
    doubled = [*given, {**given[0], "output": "painted twice"}]
    before = [] if chained else [{"role": "user", "content": MIXED}, *items_of(first)]
    named: Any = {"previous_response_id": first.id} if chained else {"store": False}
    with pytest.raises(openai.BadRequestError, match=f"The call '{given[0]['call_id']}' has two results"):
        ask(openai_client, [*before, *doubled], tools=[PAINT], **named)
    answer = ask(openai_client, [*before, *given], tools=[PAINT], **named)

    assert "painted red" in answer.output_text


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_is_no_text(openai_client: openai.OpenAI, stream: bool) -> None:
    answer = ask(openai_client, "!refuse I will not.", stream=stream)
    events = list(answer) if stream else []
    answer = events[-1].response if stream else answer

    [item] = answer.output
    assert [(part.type, part.refusal) for part in item.content] == [("refusal", "I will not.")]
    assert [event.delta for event in events if event.type == "response.refusal.delta"] == (
        ["I will not."] if stream else []
    )


def test_a_compacted_conversation_is_continued(openai_client: openai.OpenAI, served: Served) -> None:
    image: Any = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"}
    first = ask(openai_client, [{"role": "user", "content": [{"type": "input_text", "text": "one"}, image]}])
    compacted = openai_client.responses.compact(model="parrot", input="one")
    body = {"model": "parrot", "input": "two", "previous_response_id": first.id}
    with served.http() as http:
        *messages, item = http.post("/v1/responses/compact", json=body).json()["output"]
    after = ask(openai_client, [*messages, item, {"role": "user", "content": "three"}])

    assert (item["type"], compacted.object, compacted.usage.total_tokens) == ("compaction", "response.compaction", 15)
    assert [part["type"] for message in messages for part in message["content"]] == [
        "input_text",
        "input_image",
        "input_text",
    ]
    assert after.output_text.startswith("You said: one / two / [A note, not the user's words")
    assert after.output_text.endswith("/ three")


def test_a_second_compaction_replaces_the_summary_of_the_first(openai_client: openai.OpenAI, served: Served) -> None:
    with served.http() as http:

        def compacted(**body: Any) -> list[Any]:
            output: list[Any] = http.post("/v1/responses/compact", json={"model": "parrot", **body}).json()["output"]
            return output

        first = compacted(input="one")
        again = compacted(input=first)
        stored = ask(openai_client, [*first, {"role": "user", "content": "two"}])
        later = compacted(previous_response_id=stored.id)

    texts = [[item["content"][0]["text"] for item in items if item["type"] == "message"] for items in (again, later)]
    assert texts == [["one"], ["one", "two"]]
    assert [items[-1]["type"] for items in (again, later)] == ["compaction", "compaction"]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, "There is no conversation to compact"),
        ({"input": "one", "previous_response_id": "resp_1"}, 400, "Previous response with id 'resp_1' not found"),
        ({"input": "one", "model": "banana"}, 404, "There is no model 'banana'"),
        ({"input": [{"type": "compaction", "encrypted_content": "eyJhIjoxfQ=="}]}, 400, "is not from this server"),
        ({"input": "!fail x"}, 400, "refused this server"),
    ],
)
def test_what_cannot_be_compacted_is_refused(served: Served, body: dict[str, Any], status: int, message: str) -> None:
    with served.http() as http:
        answer = http.post("/v1/responses/compact", json={"model": "parrot", **body})

    assert (answer.status_code, message in answer.json()["error"]["message"]) == (status, True)
