"""A2A messages that JSON or a database cannot represent, and the setting for push notifications."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from a2a.types import Message, Part

from graph_agent.a2a.server import executor as server_executor
from graph_agent.a2a.wire import EXTENSION
from tests.server.process import serving
from tests.support.a2a_agents import weather_agent
from tests.support.a2a_process import AGENT, a2a_process
from tests.support.a2a_servers import serving_ours

BAD = {
    "metadata": '"metadata": {"deep": [{"x": NaN}]}',
    "data": '"parts": [{"data": {"x": [1, Infinity]}}]',
    "part metadata": '"parts": [{"text": "hi", "metadata": {"x": -Infinity}}]',
    "overflow": '"parts": [{"data": 1e999}]',
    "deep": '"metadata": ' + '{"x": [' * 20 + "1" + "]}" * 20,
    "nul": '"contextId": "a\\u0000b"',
}


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
@pytest.mark.parametrize("what", BAD)
async def test_non_json_numbers_are_refused_over_jsonrpc(what: str, method: str) -> None:
    message = _message(BAD[what])
    body = f'{{"jsonrpc": "2.0", "id": 1, "method": "{method}", "params": {{"message": {message}}}}}'
    with serving_ours(weather_agent(["Hello."], tools=[])) as url:
        answer = await _posted(f"{url}/a2a", body)

    assert (answer.status_code, answer.json()["error"]["code"], answer.json()["id"]) == (200, -32602, 1)


@pytest.mark.parametrize("method", ["send", "stream"])
@pytest.mark.parametrize("what", BAD)
async def test_non_json_numbers_are_refused_over_rest(what: str, method: str) -> None:
    with serving_ours(weather_agent(["Hello."], tools=[])) as url:
        answer = await _posted(f"{url}/a2a/rest/message:{method}", f'{{"message": {_message(BAD[what])}}}')

    assert (answer.status_code, answer.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize("what", ["metadata", "data"])
async def test_non_json_numbers_are_refused_in_version_0_3(what: str) -> None:
    bad = {
        "metadata": '"metadata": {"x": NaN}, "parts": [{"kind": "text", "text": "hi"}]',
        "data": '"parts": [{"kind": "data", "data": {"x": NaN}}]',
    }
    message = f'{{"messageId": "m", "role": "user", "kind": "message", {bad[what]}}}'
    body = f'{{"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {{"message": {message}}}}}'
    with serving_ours(weather_agent(["Hello."], tools=[])) as url:
        answer = await _posted(f"{url}/a2a", body, version="0.3")

    assert answer.json()["error"]["code"] == -32602


@pytest.mark.parametrize("path", ["/a2a", "/a2a/rest/message:send"])
async def test_too_deeply_nested_json_is_a_client_error(path: str) -> None:
    with serving_ours(weather_agent(["Hello."], tools=[])) as url:
        answer = await _posted(f"{url}{path}", '{"x": [' * 5000 + "1" + "]}" * 5000)

    assert (answer.status_code, answer.json()["kind"]) == (400, "invalid")


def test_forwarded_parts_are_selected_without_comparing_parts() -> None:
    passed_on = Part(text="before")
    passed_on.metadata[EXTENSION] = 1
    message = Message(message_id="m", parts=[passed_on, Part(text="now"), passed_on])
    compared: list[Any] = []

    class Counting:
        def __init__(self, part: Part) -> None:
            self.part = part

        def __getattr__(self, name: str) -> Any:
            return getattr(self.part, name)

        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return self is other

        __hash__ = object.__hash__

    given: Any = SimpleNamespace(parts=[Counting(part) for part in message.parts])
    messages = server_executor._input(given)

    assert ([one.text for one in messages], compared) == (["before", "before", "now"], [])


def _message(bad: str) -> str:
    parts = "" if '"parts"' in bad else ', "parts": [{"text": "hi"}]'
    return f'{{"messageId": "m", "role": "ROLE_USER", {bad}{parts}}}'


async def _posted(url: str, body: str, version: str = "1.0") -> httpx.Response:
    headers = {"content-type": "application/json", "a2a-version": version}
    async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
        return await http.post(url, content=body, headers=headers)


async def _card(url: str) -> Any:
    async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
        return (await http.get(f"{url}/.well-known/agent-card.json")).json()["capabilities"].get("pushNotifications")


@pytest.mark.parametrize(("options", "offered"), [([], None), (["--push-notifications"], True)])
async def test_push_notifications_are_enabled_by_a_command_option(
    options: list[str], offered: bool | None, tmp_path: Path
) -> None:
    with a2a_process(tmp_path, "--db", "memory:", *options) as (url, _):
        advertised = bool(await _card(url))

    assert advertised == bool(offered)


async def test_push_notifications_are_enabled_by_the_agent_file_in_both_servers(tmp_path: Path) -> None:
    file = {**AGENT, "push_notifications": True}
    with a2a_process(tmp_path, "--db", "memory:", agent=file) as (url, _):
        advertised = [await _card(url)]
    with serving(tmp_path, agent=file) as served:
        advertised.append(await _card(served.url))
        config = {"url": "http://127.0.0.1:1/hook"}
        request: Any = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}
        request["configuration"] = {"taskPushNotificationConfig": config}
        async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
            inside = await http.post(
                f"{served.url}/a2a/rest/message:send", json=request, headers={"a2a-version": "1.0"}
            )

    # Push notifications must not reach the server's own network.
    assert (advertised, inside.status_code) == ([True, True], 400)
