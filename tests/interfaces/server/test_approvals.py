"""Approvals over HTTP: the session routes, and plain chat clients of both APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
import yaml

from tests.interfaces.server.process import PARROT, Served, serving
from tests.support.chat_client import answer, chat, events

CALL = '!call look_up {"key": "k"}'
TWO = '!call look_up {"key": "k"}\n!call look_up {"key": "l"}'
BOTH = f'!call delegate_to_clerk {json.dumps({"task": CALL})}\n!call look_up {{"key": "own"}}'
KEY = "ana-has-this-long-key"
AGENT = {**PARROT, "config": {"model_retries": 0, "approve": ["look_up"]}}
QUESTION = (
    "I call.\n\n"
    'A call waits for approval:\n1. look_up {"key": "k"}\n'
    'Answer with one of: "approve", "reject", "reject: <reason>", "edit: {<all arguments as JSON>}", '
    '"respond: <the result>".'
)


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    environment = {"GRAPH_AGENT_API_KEYS": f"ana:{KEY}"}
    folder = tmp_path_factory.mktemp("asking")
    (folder / "clerk.yaml").write_text(yaml.safe_dump({**AGENT, "name": "clerk"}))
    agent = {**AGENT, "delegates": [{"agent": "clerk.yaml"}]}
    with serving(folder, agent=agent, environment=environment, up="/health") as server:
        yield server


@pytest.fixture
def http(asking: Served) -> Iterator[Any]:
    with asking.http(headers={"authorization": f"Bearer {KEY}"}) as client:
        yield client


@pytest.fixture
def openai_client(asking: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{asking.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic_client(asking: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=asking.url, api_key=KEY, max_retries=0) as client:
        yield client


def decided(http: Any, session: str) -> list[tuple[str, str]]:
    found = events(http, session, type="approval_decision")
    return [(each["decision"], each["decided_by"]) for each in found]


def test_a_waiting_session_is_listed_as_waiting_for_approval(http: Any) -> None:
    chat(http, "listed", CALL)
    chat(http, "other", "hello")
    listed = {each["id"]: each["waiting"] for each in http.get("/sessions?limit=100").json()["sessions"]}
    info = http.get("/sessions/listed").json()

    assert ({name: listed[name] for name in ("listed", "other")}, info["status"], info["interrupts"][0]["value"]) == (
        {"listed": "approval", "other": None},
        "RUNNING",
        {
            "action_requests": [{"name": "look_up", "args": {"key": "k"}}],
            "review_configs": [
                {"action_name": "look_up", "allowed_decisions": ["approve", "edit", "reject", "respond"]}
            ],
            "call_ids": [info["pending"][0]["id"]],
        },
    )


def test_decisions_are_sent_to_resume_and_the_key_names_the_person(http: Any) -> None:
    chat(http, "resumed", TWO)
    decisions = [{"type": "approve"}, {"type": "reject", "message": "Not l."}]
    done = http.post("/sessions/resumed/resume", json={"answer": {"decisions": decisions, "decided_by": "mallory"}})

    assert (done.json()["status"], done.json()["waiting"], decided(http, "resumed")) == (
        "COMPLETED",
        None,
        [("approve", "ana"), ("reject", "ana")],
    )


def test_a_decision_that_does_not_fit_is_refused_and_the_session_waits_as_before(http: Any) -> None:
    chat(http, "misfit", CALL)
    before = http.get("/sessions/misfit").json()
    answers: list[Any] = [
        {"decisions": []},
        {"decisions": [{"type": "edit", "edited_action": {"args": {"k": 1}}}]},
        "?",
    ]
    refused = [http.post("/sessions/misfit/resume", json={"answer": each}) for each in answers]
    after = http.get("/sessions/misfit").json()

    assert ([each.status_code for each in refused], after) == ([409, 409, 409], before)
    assert "look_up has no argument 'k'" in refused[1].json()["error"]


def test_a_chat_client_answers_in_its_session_with_text(http: Any) -> None:
    question = answer(chat(http, "text", CALL))
    done = answer(chat(http, "text", "approve"))

    assert (question, "look_up said" in done, decided(http, "text")) == (QUESTION, True, [("approve", "ana")])


def test_a_chat_client_decides_on_the_calls_of_an_agent_and_of_its_delegate_in_one_round(http: Any) -> None:
    question = answer(chat(http, "both", BOTH))
    again = answer(chat(http, "both", "1: approve"))
    chat(http, "both", "reject")

    assert ("2 calls wait for approval:" in question, "A call waits for approval:" in again) == (True, True)
    assert question.splitlines()[2:6] == [
        "2 calls wait for approval:",
        '1. look_up {"key": "k"}',
        "   Delegate clerk",
        '2. look_up {"key": "own"}',
    ]
    assert (sorted(decided(http, "both")), http.get("/sessions/both").json()["status"]) == (
        [("approve", "ana"), ("reject", "ana")],
        "COMPLETED",
    )


def test_one_decision_sent_to_resume_counts_for_the_calls_of_all_requests(http: Any) -> None:
    chat(http, "all", BOTH)
    done = http.post("/sessions/all/resume", json={"answer": "approve"})

    assert (done.json()["status"], decided(http, "all")) == ("COMPLETED", [("approve", "ana")] * 2)


def test_a_chat_client_may_answer_with_json(http: Any) -> None:
    chat(http, "json", TWO)
    again = answer(chat(http, "json", '{"decisions": [{"type": "approve"}]}'))
    done = chat(http, "json", '{"decisions": [{"type": "approve"}, {"type": "respond", "message": "mine"}]}')

    assert ("has 1 decisions, and 2 calls wait" in again, "mine" in answer(done), decided(http, "json")) == (
        True,
        True,
        [("approve", "ana"), ("respond", "ana")],
    )


def test_a_message_that_is_no_decision_repeats_the_question(http: Any) -> None:
    chat(http, "repeats", CALL)
    again = answer(chat(http, "repeats", "What does it do?"))
    called = events(http, "repeats", type=["tool_call", "tool_result"])
    chat(http, "repeats", "no, take another key")
    rejected = events(http, "repeats", type="tool_result")

    assert ("'What does it do?' is no decision" in again, again.startswith("A call waits"), called) == (True, True, [])
    assert [each["content"] for each in rejected] == ["Not run: a person rejected this call. Reason: take another key"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_openai_client_without_a_session_answers_with_its_next_message(
    openai_client: openai.OpenAI, stream: bool
) -> None:
    messages: list[Any] = [{"role": "user", "content": CALL}]

    def send() -> str:
        if not stream:
            reply = openai_client.chat.completions.create(model="parrot", messages=messages)
            return reply.choices[0].message.content or ""
        chunks = openai_client.chat.completions.create(model="parrot", messages=messages, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    question = send()
    messages += [{"role": "assistant", "content": question}, {"role": "user", "content": "why?"}]
    again = send()
    messages += [{"role": "assistant", "content": again}, {"role": "user", "content": "yes"}]
    done = send()
    with pytest.raises(openai.BadRequestError, match="no longer wait"):
        send()

    assert (question.startswith(QUESTION), "'why?' is no decision" in again, "look_up said" in done) == (
        True,
        True,
        True,
    )


@pytest.mark.parametrize("stream", [False, True])
def test_an_anthropic_client_without_a_session_answers_with_its_next_message(
    anthropic_client: anthropic.Anthropic, stream: bool
) -> None:
    messages: list[Any] = [{"role": "user", "content": CALL}]

    def send() -> str:
        given: Any = {"model": "parrot", "max_tokens": 100, "messages": messages}
        if stream:
            with anthropic_client.messages.stream(**given) as reply:
                return reply.get_final_text()
        return "".join(block.text for block in anthropic_client.messages.create(**given).content)

    question = send()
    messages += [{"role": "assistant", "content": question}, {"role": "user", "content": "reject: not now"}]
    done = send()

    assert (question.startswith(QUESTION), "Reason: not now" in done) == (True, True)
