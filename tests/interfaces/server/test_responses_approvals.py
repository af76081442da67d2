"""Approvals over the Responses API: `mcp_approval_request` and `mcp_approval_response`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.interfaces.server.process import PARROT, Served, serving

KEY = "ana-has-this-long-key"
AGENT = {**PARROT, "config": {"model_retries": 0, "approve": ["look_up"]}}
TWO = '!call look_up {"key": "k"}\n!call look_up {"key": "l"}'
PAINT: Any = {
    "type": "function",
    "name": "paint",
    "parameters": {"type": "object", "properties": {"color": {"type": "string"}}},
}


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    environment = {"GRAPH_AGENT_API_KEYS": f"ana:{KEY},bob:{KEY}-of-bob"}
    with serving(tmp_path_factory.mktemp("asking"), agent=AGENT, environment=environment, up="/health") as server:
        yield server


@pytest.fixture
def client(asking: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{asking.url}/v1", api_key=KEY, max_retries=0) as opened:
        yield opened


def ask(client: openai.OpenAI, content: Any, **options: Any) -> Any:
    return client.responses.create(model="parrot", input=content, **options)


def requests_of(response: Any) -> list[Any]:
    return [item for item in response.output if item.type == "mcp_approval_request"]


def decide(request: Any, approve: bool, **fields: Any) -> Any:
    return {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve, **fields}


def results(response: Any) -> list[str]:
    """The results that the parrot repeats, sorted: rejected calls have theirs before others run."""
    return sorted(str(response.output_text).split("; ")[1:])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("store", [True, False])
def test_several_calls_are_decided_at_once(client: openai.OpenAI, store: bool, stream: bool) -> None:
    waiting = ask(client, TWO, store=store, stream=stream)
    waiting = list(waiting)[-1].response if stream else waiting
    first, second = requests_of(waiting)
    decisions = [decide(second, approve=False, reason="Not l."), decide(first, approve=True)]
    if store:
        done = ask(client, decisions, previous_response_id=waiting.id)
    else:
        history = [item.model_dump(exclude_none=True) for item in waiting.output]
        done = ask(client, [{"role": "user", "content": TWO}, *history, *decisions], store=False)

    assert [(each.name, json.loads(each.arguments), each.server_label) for each in (first, second)] == [
        ("look_up", {"key": "k"}, "parrot"),
        ("look_up", {"key": "l"}, "parrot"),
    ]
    assert (waiting.status, results(done)) == (
        "completed",
        ["look_up said: Not run: a person rejected this call. Reason: Not l.", "look_up said: the value of k"],
    )


def test_calls_without_a_decision_are_asked_about_again(client: openai.OpenAI, asking: Served) -> None:
    waiting = ask(client, TWO)
    first, _ = requests_of(waiting)
    again = ask(client, [decide(first, approve=True)], previous_response_id=waiting.id)
    [rest] = requests_of(again)
    done = ask(client, [decide(rest, approve=True)], previous_response_id=again.id)
    with asking.http(headers={"authorization": f"Bearer {KEY}"}) as http:
        history = http.get(f"/memory/sessions/{waiting.id}/events", params={"type": "approval_decision"}).json()

    assert (json.loads(rest.arguments), results(done)) == (
        {"key": "l"},
        ["look_up said: the value of k", "look_up said: the value of l"],
    )
    assert [event["decided_by"] for event in history["events"]] == ["ana", "ana"]


def test_a_text_answers_too(client: openai.OpenAI) -> None:
    waiting = ask(client, '!call look_up {"key": "k"}')
    done = ask(client, "approve", previous_response_id=waiting.id)

    assert ("A call waits for approval" in waiting.output_text, results(done)) == (
        True,
        ["look_up said: the value of k"],
    )


def test_an_approval_and_a_call_of_the_caller_are_answered_together(client: openai.OpenAI) -> None:
    waiting = ask(client, '!call look_up {"key": "k"}\n!call paint {"color": "red"}', tools=[PAINT])
    done = waiting
    for _ in range(3):
        answers = [decide(each, approve=True) for each in requests_of(done)]
        answers += [
            {"type": "function_call_output", "call_id": each.call_id, "output": "painted"}
            for each in done.output
            if each.type == "function_call"
        ]
        if not answers:
            break
        done = ask(client, answers, previous_response_id=done.id, tools=[PAINT])

    assert results(done) == ["look_up said: the value of k", "paint said: painted"]


def test_a_decision_is_taken_once_and_only_from_its_owner(client: openai.OpenAI, asking: Served) -> None:
    waiting = ask(client, '!call look_up {"key": "k"}')
    decision = [decide(requests_of(waiting)[0], approve=True)]
    with openai.OpenAI(base_url=f"{asking.url}/v1", api_key=f"{KEY}-of-bob", max_retries=0) as bob:
        with pytest.raises(openai.BadRequestError, match=r"Previous response with id .* not found"):
            ask(bob, decision, previous_response_id=waiting.id)
        with pytest.raises(openai.BadRequestError, match="no longer wait"):
            ask(bob, decision)
    ask(client, decision)
    with pytest.raises(openai.BadRequestError):
        ask(client, decision, previous_response_id=waiting.id)
    with pytest.raises(openai.BadRequestError, match="no longer wait"):
        ask(client, decision)


@pytest.mark.parametrize("store", [True, False])
def test_two_different_responses_to_one_request_are_refused_and_nothing_is_lost(
    client: openai.OpenAI, store: bool
) -> None:
    waiting = ask(client, '!call look_up {"key": "k"}', store=store)
    [request] = requests_of(waiting)
    history = [item.model_dump(exclude_none=True) for item in waiting.output]
    before = [] if store else [{"role": "user", "content": '!call look_up {"key": "k"}'}, *history]
    named: Any = {"previous_response_id": waiting.id} if store else {"store": False}
    for decisions in ([True, False], [False, True]):
        with pytest.raises(openai.BadRequestError, match=f"'{request.id}' has two different responses"):
            ask(client, [*before, *(decide(request, approve) for approve in decisions)], **named)
    done = ask(client, [*before, decide(request, True), decide(request, True)], **named)

    assert results(done) == ["look_up said: the value of k"]


@pytest.mark.parametrize("store", [True, False])
def test_a_whole_history_with_earlier_decisions_is_continued(client: openai.OpenAI, store: bool) -> None:
    history: list[Any] = [{"role": "user", "content": TWO}]
    answer = ask(client, history, store=store)
    while waiting := requests_of(answer):
        history += [item.model_dump(exclude_none=True) for item in answer.output]
        history.append(decide(waiting[0], approve=True))
        answer = ask(client, history, store=store)
    history += [item.model_dump(exclude_none=True) for item in answer.output]
    after = ask(client, [*history, {"role": "user", "content": "on"}], store=store)

    assert (results(answer), after.output_text.endswith(" / on")) == (
        ["look_up said: the value of k", "look_up said: the value of l"],
        True,
    )


def test_an_unknown_request_is_refused(client: openai.OpenAI) -> None:
    waiting = ask(client, '!call look_up {"key": "k"}')
    unknown: Any = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    with pytest.raises(openai.BadRequestError, match="There is no approval request 'mcpr_1'"):
        ask(client, [unknown], previous_response_id=waiting.id)
