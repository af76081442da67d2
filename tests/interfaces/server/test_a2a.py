"""The served agent, called by the A2A SDK's own client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from a2a.types import CancelTaskRequest, GetTaskRequest
from a2a.utils.constants import TransportProtocol
from a2a.utils.errors import TaskNotFoundError

from tests.interfaces.server.process import COMPOSING_PARROT, Served, serving
from tests.support.a2a_client import a2a_client, send_text, task_text

ANNA, BERT = "anna-0123456789abcdef", "bert-0123456789abcdef"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    environment = {"GRAPH_AGENT_API_KEYS": f"anna:{ANNA},bert:{BERT}"}
    options = ["--set", "max_body_bytes=100000"]
    with serving(tmp_path_factory.mktemp("a2a"), *options, agent=COMPOSING_PARROT, environment=environment) as server:
        yield server


@pytest.mark.parametrize("binding", [TransportProtocol.JSONRPC, TransportProtocol.HTTP_JSON])
async def test_the_sdks_client_is_answered_on_the_servers_own_port(shared: Served, binding: TransportProtocol) -> None:
    async with a2a_client(shared.url, ANNA, binding=binding) as client:
        task = await send_text(client, "hi")

    assert task_text(task) == "You said: hi"


async def test_a_conversation_is_a_session_of_its_keys_own(shared: Served) -> None:
    async with a2a_client(shared.url, ANNA) as anna, a2a_client(shared.url, BERT) as bert:
        own = await send_text(anna, "mine", "talk")
        other = await send_text(bert, "yours", "talk")
        reaching = await send_text(bert, "hello", "../anna/talk")
        refusals = []
        for request in (bert.get_task(GetTaskRequest(id=own.id)), bert.cancel_task(CancelTaskRequest(id=own.id))):
            with pytest.raises(TaskNotFoundError) as refused:
                await request
            refusals.append(refused.type)
    with shared.http(headers={"x-api-key": ANNA}) as http:
        answer = http.get("/sessions/talk").json()["answer"]

    assert (task_text(other), task_text(reaching), answer) == ("You said: yours", "You said: hello", "You said: mine")
    assert refusals == [TaskNotFoundError] * 2


def test_running_tasks_are_bounded_for_each_key_also_when_their_requests_were_answered(tmp_path: Path) -> None:
    environment = {"GRAPH_AGENT_API_KEYS": f"anna:{ANNA},bert:{BERT}"}
    options = ["--set", "concurrent_requests=1"]
    with serving(tmp_path, *options, agent=COMPOSING_PARROT, environment=environment) as server, server.http() as http:

        def rpc(key: str, method: str, params: dict[str, Any]) -> Any:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            answer = http.post("/a2a", json=body, headers={"x-api-key": key, "a2a-version": "1.0"})
            return answer.json()["result"]

        def begin(key: str) -> str:
            message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": f"!wait {tmp_path / 'go'}"}]}
            params = {"message": message, "configuration": {"returnImmediately": True}}
            return str(rpc(key, "SendMessage", params)["task"]["id"])

        def state(key: str, task: str, passing: str) -> str:
            deadline = time.monotonic() + 60
            while (found := rpc(key, "GetTask", {"id": task})["status"]["state"]).endswith(("SUBMITTED", passing)):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            return str(found)

        tasks = [(ANNA, begin(ANNA)), (ANNA, begin(ANNA)), (BERT, begin(BERT))]
        before = [state(*task, "-") for task in tasks]
        (tmp_path / "go").touch()
        after = [state(*task, "WORKING") for task in tasks]
        after.append(state(ANNA, begin(ANNA), "WORKING"))

    working, rejected, completed = (f"TASK_STATE_{name}" for name in ("WORKING", "REJECTED", "COMPLETED"))
    assert (before, after) == ([working, rejected, working], [completed, rejected, completed, completed])


def test_the_card_is_public_and_what_is_behind_it_is_not(shared: Served) -> None:
    with shared.http() as http:
        card = http.get("/.well-known/agent-card.json").json()
        strangers = [http.post(path, json={}) for path in ("/a2a", "/a2a/", "/a2a/rest/message:send")]
        large = http.post("/a2a", content=b"x" * 100_001, headers={"x-api-key": ANNA})

    assert (card["name"], {interface["url"] for interface in card["supportedInterfaces"]}) == (
        "parrot",
        {f"{shared.url}/a2a", f"{shared.url}/a2a/rest"},
    )
    assert [answer.status_code for answer in (*strangers, large)] == [401, 401, 401, 413]
    assert [sorted(one["schemes"]) for one in card["securityRequirements"]] == [["bearer"], ["x-api-key"]]


@pytest.mark.parametrize("path", ["/a2a", "/a2a/"])
def test_json_rpc_answers_with_and_without_a_trailing_slash(shared: Served, path: str) -> None:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    with shared.http(headers={"x-api-key": ANNA, "a2a-version": "1.0"}) as http:
        answer = http.post(path, json=body)

    assert (answer.status_code, "You said: hi" in answer.text) == (200, True)


async def test_tasks_are_in_the_agents_own_database_for_every_worker(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2", agent=COMPOSING_PARROT) as server:
        async with a2a_client(server.url, "none") as client:
            task = await send_text(client, "hi", "kept")
            found = [task_text(await client.get_task(GetTaskRequest(id=task.id))) for _ in range(8)]
    with serving(tmp_path, agent=COMPOSING_PARROT) as server:
        async with a2a_client(server.url, "none") as client:
            found.append(task_text(await client.get_task(GetTaskRequest(id=task.id))))
        with server.http() as http:
            events = http.get("/memory/sessions/kept/events").json()["events"]

    assert (found, json.dumps(events).count('"user_message"')) == (["You said: hi"] * 9, 1)
