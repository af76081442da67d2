"""The hotel agent behind a real `langgraph dev`, called with the LangGraph SDK."""

from __future__ import annotations

import asyncio
import json
import signal
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from websockets.sync.client import connect

from graph_agent.session import inbox_namespace
from tests.support.dev_server import dev_process

ROOT = Path(__file__).parents[2]
HANUKKAH = "one night in Hanukkah"
TWO_WAVES = "Check availability for Hanukkah and also next weekend"

# One server serves this file, also when the tests are spread over workers.
pytestmark = pytest.mark.xdist_group("langgraph_dev")


@dataclass
class DevServer:
    url: str
    process: psutil.Process

    def mcp_servers(self) -> list[psutil.Process]:
        return [child for child in self.process.children(recursive=True) if "server.py" in child.cmdline()]


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    # In a folder of its own, as the server keeps the threads it has seen in the current one.
    folder = tmp_path_factory.mktemp("langgraph_dev")
    # It resolves the files of graphs from there.
    (folder / "examples").symlink_to(ROOT / "examples")
    environment = {"HOTEL_DB": str(folder / "hotel.db"), "GRAPH_AGENT_TODAY": "2026-11-21"}
    with dev_process(folder, ROOT / "langgraph.json", environment) as (process, url):
        assert (folder / "hotel.db").exists()
        yield DevServer(url, psutil.Process(process.pid))


@asynccontextmanager
async def new_thread(dev: DevServer) -> AsyncIterator[tuple[LangGraphClient, str]]:
    async with get_client(url=dev.url, api_key=None) as client:
        yield client, (await client.threads.create())["thread_id"]


def asking(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


async def test_the_answer_is_streamed_and_a_second_question_finds_the_history(dev: DevServer) -> None:
    async with new_thread(dev) as (client, thread):
        modes: Any = ["messages-tuple", "updates", "values"]
        parts = [part async for part in client.runs.stream(thread, "hotel", input=asking(TWO_WAVES), stream_mode=modes)]
        await client.runs.wait(thread, "hotel", input=asking(HANUKKAH))
        values: Any = (await client.threads.get_state(thread))["values"]

    sent = [part.data for part in parts if part.event == "messages"]
    tokens = [(chunk, metadata) for chunk, metadata in sent if chunk["type"] != "tool"]
    updated = [node for part in parts if part.event == "updates" for node in part.data]
    streamed = "".join(chunk["content"] for chunk, _ in tokens)
    assert {metadata["langgraph_node"] for _, metadata in tokens} == {"plan"}
    assert len(tokens) > 10
    assert updated == ["plan", "tools", "tools", "plan", "tools", "tools", "plan", "finalize"]
    assert [part.data for part in parts if part.event == "values"][-1]["messages"][-1]["content"] == streamed
    assert "Friday 27 November 2026 to Sunday 29 November 2026" in streamed
    messages = values["messages"]
    first, second = ["human", *["ai", "tool", "tool"] * 2, "ai"], ["human", *["ai", "tool"] * 2, "ai"]
    assert [message["type"] for message in messages] == first + second
    assert [messages[i]["content"] for i in (0, 7, 8)] == [TWO_WAVES, streamed, HANUKKAH]
    assert "from Friday 4 December 2026 to Saturday 5 December 2026 (1 night)" in messages[-1]["content"]
    assert [event["type"] for event in values["events"]].count("agent_response") == 2


async def test_a_runs_context_overrides_the_agents_configuration(dev: DevServer) -> None:
    async with new_thread(dev) as (client, thread):
        limited: Any = await client.runs.wait(thread, "hotel", input=asking(TWO_WAVES), context={"max_steps": 1})

    assert (limited["status"], limited["stop_reason"]) == ("ROUND_LIMIT", "step_limit")
    assert limited["messages"][-1]["content"].startswith("Reached maximum reasoning steps (1)\n\n")
    assert [message["type"] for message in limited["messages"]] == ["human", "ai", "tool", "tool", "ai"]


async def test_the_assistant_shows_its_nodes_and_what_it_takes(dev: DevServer) -> None:
    async with get_client(url=dev.url, api_key=None) as client:
        [assistant] = await client.assistants.search(graph_id="hotel")
        drawn = await client.assistants.get_graph(assistant["assistant_id"])
        schemas: Any = await client.assistants.get_schemas(assistant["assistant_id"])

    assert [node["id"] for node in drawn["nodes"]] == ["__start__", "plan", "tools", "delegate", "finalize", "__end__"]
    assert {(edge["source"], edge["target"]) for edge in drawn["edges"]} == {
        ("__start__", "plan"),
        ("plan", "tools"),
        ("plan", "delegate"),
        ("plan", "finalize"),
        ("finalize", "plan"),
        ("tools", "plan"),
        ("delegate", "plan"),
        ("finalize", "__end__"),
    }
    assert list(schemas["input_schema"]["properties"]) == ["messages"]
    assert "max_steps" in schemas["context_schema"]["properties"]


async def test_runs_share_one_mcp_server(dev: DevServer) -> None:
    before = dev.mcp_servers()
    async with new_thread(dev) as (client, thread), new_thread(dev) as (other, second_thread):
        answers: Any = await asyncio.gather(
            client.runs.wait(thread, "hotel", input=asking(HANUKKAH)),
            other.runs.wait(second_thread, "hotel", input=asking(TWO_WAVES)),
        )

    assert [answer["status"] for answer in answers] == ["COMPLETED", "COMPLETED"]
    assert len(before) == 1
    assert dev.mcp_servers() == before


async def test_another_client_steers_a_run_through_the_servers_store(dev: DevServer) -> None:
    async with new_thread(dev) as (client, thread), get_client(url=dev.url, api_key=None) as other:
        await send_note(other, thread, "steer", "Please be brief.")
        await client.runs.wait(thread, "hotel", input=asking(HANUKKAH))
        state: Any = await client.threads.get_state(thread)

    values = state["values"]
    inputs = [message["content"] for message in values["messages"] if message["type"] == "human"]
    assert (inputs, [event["content"] for event in values["events"] if event["type"] == "steering"]) == (
        [HANUKKAH, "Please be brief."],
        ["Please be brief."],
    )


async def test_another_client_aborts_a_run_through_the_servers_store(dev: DevServer) -> None:
    async with new_thread(dev) as (client, thread), get_client(url=dev.url, api_key=None) as other:
        # It applies to the run that is active when it is sent, so it is dated ahead of one that is about to start.
        await send_note(other, thread, "abort", first="9")
        stopped: Any = await client.runs.wait(thread, "hotel", input=asking(TWO_WAVES))
        state: Any = await client.threads.get_state(thread)

    events = state["values"]["events"]
    assert (stopped["status"], stopped["stop_reason"], [e["to"] for e in events if e["type"] == "status"]) == (
        "ABORTED",
        "aborted",
        ["RUNNING", "ABORTED"],
    )


async def send_note(client: LangGraphClient, thread: str, kind: str, content: str = "", *, first: str = "0") -> None:
    key = f"{first}{time.time_ns():019d}-{uuid.uuid4().hex}"
    await client.store.put_item(list(inbox_namespace(thread)), key, {"kind": kind, "content": content}, index=False)


def test_the_chat_apis_are_served_with_langgraphs_own(dev: DevServer) -> None:
    body = {"model": "hotel", "messages": [{"role": "user", "content": HANUKKAH}]}
    with httpx.Client(base_url=dev.url, trust_env=False, verify=False, timeout=60) as http:
        before = dev.mcp_servers()
        answer = http.post("/v1/chat/completions", json=body).json()
        unknown = http.post("/v1/messages", json={**body, "model": "x", "max_tokens": 5})
        own = [http.get(path).status_code for path in ("/ok", "/info", "/docs")]

    assert "from Friday 4 December 2026" in answer["choices"][0]["message"]["content"]
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
    assert (own, dev.mcp_servers()) == ([200, 200, 200], before)


def test_responses_are_served_with_langgraphs_own_api(dev: DevServer) -> None:
    body = {"model": "hotel", "input": HANUKKAH}
    with httpx.Client(base_url=dev.url, trust_env=False, verify=False, timeout=60) as http:
        first = http.post("/v1/responses", json=body).json()
        second = http.post("/v1/responses", json={**body, "previous_response_id": first["id"]}).json()
        background = http.post("/v1/responses", json={**body, "background": True}).json()
        streamed = http.get(f"/v1/responses/{background['id']}", params={"stream": "true"}).text
        unknown = http.post("/v1/responses", json={**body, "previous_response_id": "resp_1"}).json()
    socket_url = f"{dev.url.replace('http', 'ws', 1)}/v1/responses"
    with connect(socket_url, proxy=None, open_timeout=60) as opened:
        opened.send(json.dumps({"type": "response.create", "previous_response_id": second["id"], **body}))
        last = json.loads(opened.recv(60))
        while "response" not in last or last["response"]["status"] == "in_progress":
            last = json.loads(opened.recv(60))

    assert [each["status"] for each in (first, second, last["response"])] == ["completed"] * 3
    assert ("4 December 2026" in first["output"][0]["content"][0]["text"], "response.completed" in streamed) == (
        True,
        True,
    )
    assert unknown["error"]["code"] == "previous_response_not_found"


def test_no_mcp_server_outlives_the_dev_server(dev: DevServer) -> None:
    servers = dev.mcp_servers()

    dev.process.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs([dev.process, *servers], timeout=60)

    assert (len(servers), alive) == (1, [])
