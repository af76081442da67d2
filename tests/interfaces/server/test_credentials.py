"""Credentials of a served agent: from its file and from headers, for the tools of one request."""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.interfaces.server.parrot import digest
from tests.interfaces.server.process import PARROT, Served, refused, serving
from tests.support.a2a_process import a2a_process
from tests.support.chat_client import body, chat, events, wait_for_event

CANARY, OWN = "canary-5f0d1c77-of-a-user", "canary-90b2e4aa-of-the-agent"
VAULT = "!call vault {}"
AGENT = {
    **PARROT,
    "tools": [*PARROT["tools"], "tests.interfaces.server.parrot:vault", "tests.interfaces.server.parrot:ask"],
    "config": {"model_retries": 0, "finalize": "compose"},
    "credentials": {"service": {"env": "VAULT_SERVICE"}},
    "credential_headers": {"token": "X-User-Token"},
}
MINE = {"X-User-Token": CANARY}
BOTH = f"service={digest(OWN)}, token={digest(CANARY)}"
ALONE = f"service={digest(OWN)}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vault")


@pytest.fixture(scope="module")
def vault(folder: Path) -> Iterator[Served]:
    with serving(folder, "--workers", "2", agent=AGENT, environment={"VAULT_SERVICE": OWN}) as server:
        yield server


def completed(server: Served, **headers: str) -> str:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(**body(VAULT), extra_headers=headers)
    return str(answer.choices[0].message.content)


def streamed(server: Served, **headers: str) -> str:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(**body(VAULT), stream=True, extra_headers=headers)
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def message(server: Served, **headers: str) -> str:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        answer = client.messages.create(**body(VAULT), max_tokens=100, extra_headers=headers)
    return "".join(block.text for block in answer.content if block.type == "text")


def task(server: Served, **headers: str) -> str:
    return _task(server.url, **headers)


def _task(url: str, **headers: str) -> str:
    sent = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": VAULT}]}
    with httpx.Client(trust_env=False, verify=False, timeout=60, headers={"a2a-version": "1.0", **headers}) as http:
        return http.post(f"{url}/a2a/rest/message:send", json={"message": sent}).text


@pytest.mark.sampled(3)
@pytest.mark.parametrize("send", [completed, streamed, message, task], ids=lambda send: send.__name__)
def test_a_header_brings_a_credential_for_its_own_request(vault: Served, send: Callable[..., str]) -> None:
    found = [send(vault, **MINE), send(vault), send(vault, **{"X-User-Token": ""})]

    assert [BOTH in found[0], *(ALONE in one and "token=" not in one for one in found)] == [True, False, True, True]


def test_a_session_that_is_resumed_has_what_that_request_brings(vault: Served) -> None:
    with vault.http() as http:
        chat(http, "resumed", '!call ask {"question": "Now?"}\n!then vault {}')
        answered = http.post("/sessions/resumed/resume", json={"answer": "yes"}, headers=MINE).json()["answer"]
        again = chat(http, "resumed", VAULT).text

    assert (BOTH in answered, BOTH in again, ALONE in again) == (True, False, True)


def test_a_follow_up_has_no_credentials_of_the_request_before_it(vault: Served, tmp_path: Path) -> None:
    go = tmp_path / "go"
    order = f'!call wait_for {{"file": "{go}"}}\n!call vault {{}}'
    with vault.http() as http, concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(http.post, "/v1/chat/completions", json=body(order), headers={"X-Session-Id": "f", **MINE})
        wait_for_event(http, "f", "tool_call")
        brought = http.post("/sessions/f/follow_up", json={"text": VAULT}, headers=MINE)
        followed = http.post("/sessions/f/follow_up", json={"text": VAULT})
        go.touch()
        first = asked.result().text
        wait_for_event(http, "f", "agent_response", 2)
        results = [event["content"] for event in events(http, "f", type="tool_result") if event["name"] == "vault"]

    assert (brought.status_code, "credentials never are (token)" in brought.text, followed.status_code) == (
        400,
        True,
        202,
    )
    assert (BOTH in first, results) == (True, [BOTH, ALONE])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    "brought",
    [
        {"credentials": {"token": CANARY}},
        {"metadata": {"credentials": {"token": CANARY}}},
        {"context": {"credentials": {"token": CANARY}}},
        {"config": {"configurable": {"credentials": CANARY}}},
    ],
    ids=lambda given: next(iter(given)),
)
def test_credentials_in_a_body_are_refused_and_not_repeated(vault: Served, path: str, brought: dict[str, Any]) -> None:
    with vault.http() as http:
        answer = http.post(path, json={**body("hi", max_tokens=100), **brought})

    text = answer.text
    assert (answer.status_code, "credential_headers" in text, CANARY in text) == (400, True, False)


@pytest.mark.parametrize("path", ["steer", "follow_up", "resume"])
def test_credentials_in_a_sessions_body_are_refused(vault: Served, path: str) -> None:
    with vault.http() as http:
        chat(http, "body", "hi")
        answer = http.post(f"/sessions/body/{path}", json={"text": "x", "credentials": {"token": CANARY}})

    assert (answer.status_code, "credential_headers" in answer.text, CANARY in answer.text) == (400, True, False)


def test_credentials_in_a_tasks_message_are_refused(vault: Served) -> None:
    sent: dict[str, Any] = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    with vault.http(headers={"a2a-version": "1.0"}) as http:
        answers = [
            http.post("/a2a/rest/message:send", json={"message": {**sent, "metadata": {"credentials": CANARY}}}),
            http.post("/a2a/rest/message:send", json={"message": sent, "metadata": {"credentials": CANARY}}),
        ]

    assert [(one.status_code, "credential_headers" in one.text, CANARY in one.text) for one in answers] == [
        (400, True, False)
    ] * 2


def test_a_header_that_is_there_twice_is_refused(vault: Served) -> None:
    twice = [("X-User-Token", CANARY), ("X-User-Token", "another")]
    sent = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    with vault.http() as http:
        answers = [
            http.post("/v1/chat/completions", json=body("hi"), headers=twice),
            http.post("/a2a/rest/message:send", json={"message": sent}, headers=[*twice, ("a2a-version", "1.0")]),
        ]

    assert [(one.status_code, "send it once" in one.text, CANARY in one.text) for one in answers] == [
        (400, True, False)
    ] * 2


def test_no_credential_is_stored_or_logged(vault: Served, folder: Path) -> None:
    with vault.http(headers=MINE) as http:
        chat(http, "kept", VAULT)
        responses = [*events(http, "kept"), http.get("/sessions/kept").json(), http.get("/metrics").text]
    _task(vault.url, **MINE)
    files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}

    secrets = [CANARY.encode(), OWN.encode()]
    found = [name for name, content in files.items() if any(secret in content for secret in secrets)]
    assert (found, CANARY in json.dumps(responses), "sessions.db" in files, "log" in files) == ([], False, True, True)


def test_settings_and_the_command_line_add_to_the_file(tmp_path: Path) -> None:
    environment = {"VAULT_SERVICE": OWN, "OTHER": "another-secret"}
    options = ["--set", "credential_headers={other: X-Other}", "--credential", "third=env:OTHER"]
    with serving(tmp_path, *options, agent=AGENT, environment=environment) as server:
        found = completed(server, **MINE, **{"X-Other": "x"})

    secrets = {"service": OWN, "token": CANARY, "other": "x", "third": "another-secret"}
    digests = {part.strip() for part in found.split(": ")[-1].split(",")}
    assert digests == {f"{name}={digest(secret)}" for name, secret in secrets.items()}


def test_an_a2a_process_has_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAULT_SERVICE", OWN)
    monkeypatch.setenv("OTHER", "another-secret")
    with a2a_process(tmp_path, "--credential", "third=env:OTHER", agent=AGENT) as (url, _):
        found = [_task(url, **MINE), _task(url)]

    third = f"third={digest('another-secret')}"
    assert [f"service={digest(OWN)}, {third}" in one for one in found] == [True, True]
    assert [f"token={digest(CANARY)}" in one for one in found] == [True, False]


@pytest.mark.parametrize(
    ("changed", "options", "why"),
    [
        ({}, [], "service ($VAULT_SERVICE)"),
        ({"credentials": {"token": "sk-literal"}}, [], "credentials.token: write {env: NAME}"),
        ({"credentials": {}, "credential_headers": {"token": "X-Session-Id"}}, [], "means something else"),
        ({"credentials": {}, "credential_headers": {"token": "no header"}}, [], "is not a valid header name"),
        ({"credentials": {}}, ["--credential", "token=sk-literal"], "--credential token: write NAME=env:VARIABLE"),
        ({"credentials": {}}, ["--credential", "token=env:NOT_SET"], "token ($NOT_SET)"),
    ],
    ids=["missing", "literal", "taken", "no header", "literal option", "missing option"],
)
def test_a_server_that_lacks_a_credential_does_not_start(
    tmp_path: Path, changed: dict[str, Any], options: list[str], why: str
) -> None:
    status, output = refused(tmp_path, options, agent={**AGENT, **changed})

    assert (status, why in output, "sk-literal" in output, "Traceback" in output) == (2, True, False, False)


def test_a_servers_own_keys_are_no_credentials(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("anna:anna-0123456789abcdef\n")
    agent = {**AGENT, "credentials": {}, "credential_headers": {"token": "Authorization"}}
    status, output = refused(tmp_path, ["--keys-file", str(keys)], agent=agent)

    assert (status, "holds the API key of this server" in output) == (2, True)
