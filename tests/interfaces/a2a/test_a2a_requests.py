"""A2A requests with values that are invalid or that cannot be stored, and the setting for push notifications."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from a2a.types import ListTasksRequest, Message, Part, TaskState

from graph_agent.interfaces.server.a2a import executor as server_executor
from graph_agent.interfaces.server.a2a.store import open_stores
from tests.interfaces.server.process import serving
from tests.support.a2a_agents import weather_agent
from tests.support.a2a_client import EXTENSION, a2a_client, message_request, send
from tests.support.a2a_process import AGENT, a2a_process
from tests.support.a2a_servers import serving_here, serving_ours

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


@pytest.mark.parametrize("length", [-1, 2**31, 10**30])
@pytest.mark.parametrize(
    ("version", "method", "params"),
    [
        ("0.3", "tasks/get", {"id": "t", "historyLength": 0}),
        ("0.3", "message/send", {"configuration": {"historyLength": 0}}),
        ("1.0", "GetTask", {"id": "t", "historyLength": 0}),
        ("1.0", "SendMessage", {"configuration": {"historyLength": 0}}),
    ],
)
async def test_a_length_outside_the_protocols_range_is_a_client_error(
    version: str, method: str, params: dict[str, Any], length: int
) -> None:
    sent = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    with serving_ours(weather_agent(["Hello."], tools=[])) as url:
        answer = await _posted(f"{url}/a2a", sent.replace(": 0}", f": {length}}}"), version=version)

    assert answer.json()["error"]["code"] == -32602


@pytest.mark.parametrize(("path", "code"), [("/a2a", -32600), ("/a2a/rest/message:send", 400)])
async def test_too_deeply_nested_json_is_a_client_error(path: str, code: int) -> None:
    with serving_ours(weather_agent(["Hello."], tools=[])) as url:
        answer = await _posted(f"{url}{path}", '{"x": [' * 5000 + "1" + "]}" * 5000)

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


HELLO = '{"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}'
FOREIGN_TOKENS = [
    {"ts": 10**40, "id": "a"},
    {"ts": -1, "id": "a"},
    {"ts": 1, "id": "\x00"},
    {"ts": 1, "id": "\ud800"},
]
BAD_LISTS = [
    *("status=BAD", "status=", "status=99", "status=completed", "status=BAD&status=TASK_STATE_COMPLETED"),
    *("status=TASK_STATE_WORKING&status=TASK_STATE_COMPLETED", "status=TASK_STATE_WORKING,TASK_STATE_COMPLETED"),
    *("pageSize=x", "pageSize=", "pageSize=0", "pageSize=-1", "pageSize=101", "pageSize=1.5", "pageSize=1_0"),
    *("pageSize=%D9%A3", "pageSize=99999999999", "pageSize=1&pageSize=1", "page_size=1"),
    *("pageToken=zzz", "pageToken=%FF", "pageToken=%00", f"pageToken={base64.b64encode(b'[' * 9_000).decode()}"),
    *(f"pageToken={base64.urlsafe_b64encode(json.dumps(token).encode()).decode()}" for token in FOREIGN_TOKENS),
    *("historyLength=x", "historyLength=", "historyLength=-1", "historyLength=NaN", "historyLength=99999999999"),
    *("statusTimestampAfter=x", "statusTimestampAfter=", "statusTimestampAfter=2026-01-31"),
    *("statusTimestampAfter=2026-13-01T00:00:00Z", "includeArtifacts=maybe", "includeArtifacts="),
    *("contextId=%00", "contextId=%FF", "contextId=a&contextId=b", "context_id=a", "tenant=%00"),
]
BAD_READS = [query for query in BAD_LISTS if query.startswith("historyLength")]


@pytest.mark.parametrize("store", ["memory:", "sqlite:///{folder}/tasks.db"])
async def test_invalid_query_parameters_are_client_errors(store: str, tmp_path: Path) -> None:
    graph = weather_agent(["Hello."], tools=[])
    async with (
        open_stores(store.format(folder=tmp_path)) as stores,
        serving_here(graph, stores=stores) as url,
        httpx.AsyncClient(timeout=30, trust_env=False) as http,
    ):
        sent = await _posted(f"{url}/a2a/rest/message:send", HELLO)
        task_id = sent.json()["task"]["id"]
        paths = {"tasks": BAD_LISTS, f"tasks/{task_id}": BAD_READS, f"v1/tasks/{task_id}": BAD_READS}
        answers = [
            (query, await http.get(f"{url}/a2a/rest/{path}?{query}", headers={"a2a-version": version}))
            for (path, queries), version in zip(paths.items(), ["1.0", "1.0", "0.3"], strict=True)
            for query in queries
        ]

    found = [(query, answer.status_code, answer.json().get("error", {}).get("status")) for query, answer in answers]
    assert found == [(query, 400, "INVALID_ARGUMENT") for query in [*BAD_LISTS, *BAD_READS, *BAD_READS]]


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("", 1),
        ("status=TASK_STATE_COMPLETED&pageSize=100&historyLength=0&includeArtifacts=true", 1),
        ("status=TASK_STATE_WORKING", 0),
        ("status=TASK_STATE_UNSPECIFIED&contextId=&pageToken=&includeArtifacts=FALSE", 1),
        ("statusTimestampAfter=2026-01-31T12:00:00.5%2B02:00", 1),
        ("statusTimestampAfter=9999-12-31T23:59:59Z", 0),
        ("contextId=other", 0),
        ("unknown=1&unknown=2", 1),
    ],
)
async def test_valid_query_parameters_select_tasks(query: str, count: int) -> None:
    with serving_ours(weather_agent(["Hello."], tools=[])) as url:
        await _posted(f"{url}/a2a/rest/message:send", HELLO)
        async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
            answer = await http.get(f"{url}/a2a/rest/tasks?{query}", headers={"a2a-version": "1.0"})

    assert (answer.status_code, len(answer.json()["tasks"])) == (200, count)


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_the_pages_of_a_list_have_all_tasks(binding: str) -> None:
    with serving_ours(weather_agent(["Hello.", "Hello.", "Hello."], tools=[])) as url:
        async with a2a_client(url, streaming=False, binding=binding) as client:
            sent = [(await send(client, message_request(str(at)))).id for at in range(3)]
            first = await client.list_tasks(ListTasksRequest(page_size=2, status=TaskState.TASK_STATE_COMPLETED))
            second = await client.list_tasks(ListTasksRequest(page_size=2, page_token=first.next_page_token))

    assert [task.id for task in [*first.tasks, *second.tasks]] == sent[::-1]


@pytest.mark.parametrize("params", ['{"status": "BAD"}', '{"status": 99}', '{"pageToken": "zzz"}', '{"pageSize": 0}'])
async def test_an_invalid_list_is_refused_over_jsonrpc(params: str) -> None:
    with serving_ours(weather_agent(["Hello."], tools=[])) as url:
        answer = await _posted(
            f"{url}/a2a", f'{{"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {params}}}'
        )

    assert (answer.status_code, answer.json()["error"]["code"], answer.json()["id"]) == (200, -32602, 1)


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

    given: Any = SimpleNamespace(parts=[Counting(part) for part in message.parts], metadata=message.metadata)
    messages = server_executor._input(given)

    assert ([one.text for one in messages], compared) == (["before", "before", "now"], [])


def _message(bad: str) -> str:
    parts = "" if '"parts"' in bad else ', "parts": [{"text": "hi"}]'
    return f'{{"messageId": "m", "role": "ROLE_USER", {bad}{parts}}}'


async def _posted(url: str, body: str, version: str = "1.0") -> httpx.Response:
    headers = {"content-type": "application/json", "a2a-version": version}
    async with httpx.AsyncClient(timeout=30, trust_env=False, verify=False) as http:
        return await http.post(url, content=body, headers=headers)


async def _card(url: str) -> Any:
    async with httpx.AsyncClient(timeout=30, trust_env=False, verify=False) as http:
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
        async with httpx.AsyncClient(timeout=30, trust_env=False, verify=False) as http:
            inside = await http.post(
                f"{served.url}/a2a/rest/message:send", json=request, headers={"a2a-version": "1.0"}
            )

    # Push notifications must not reach the server's own network.
    assert (advertised, inside.status_code) == ([True, True], 400)
