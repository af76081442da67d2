"""Admission of requests by `graph-agent a2a` and by applications of `a2a_app`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import SecretStr

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.server import ApiKey, ServerSettings
from tests.interfaces.server.process import ROOT
from tests.support.a2a_process import AGENT, a2a_process
from tests.support.a2a_servers import serving_ours
from tests.support.warm_process import warm_python

ANNA, BERT = "anna-0123456789abcdef", "bert-0123456789abcdef"
JSON = {"content-type": "application/json"}
EVIL = "https://evil.example"
FROM_ELSEWHERE = [
    ({**JSON, "origin": EVIL}, 403),
    ({"content-type": "text/plain", "origin": EVIL}, 403),
    ({**JSON, "origin": "null"}, 403),
    ({**JSON, "host": "evil.example:9000"}, 403),
    ({**JSON, "host": "evil.example:9000", "origin": "http://evil.example:9000"}, 403),
    ({"content-type": "text/plain"}, 415),
    ({"content-type": "application/x-www-form-urlencoded"}, 415),
    ({}, 415),
    (JSON, 200),
    ({**JSON, "origin": "http://localhost:3000"}, 403),
    ({**JSON, "host": "localhost:9000", "origin": "http://localhost:9000"}, 200),
    ({"content-type": "application/a2a+json; charset=utf-8"}, 200),
]


def request(path: str, text: str = "hi", **message: Any) -> bytes:
    """The body of a request that sends a message, for JSON-RPC or HTTP+JSON."""
    params = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}], **message}}
    rpc = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    return httpx.Request("POST", "http://x", json=params if "rest" in path else rpc).content


def http(url: str, **headers: str) -> httpx.Client:
    return httpx.Client(
        base_url=url, trust_env=False, verify=False, timeout=60, headers={"a2a-version": "1.0", **headers}
    )


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with a2a_process(tmp_path_factory.mktemp("open"), "--db", "memory:", "--set", "max_body_bytes=100000") as (url, _):
        yield url


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "keys").write_text(f"anna:{ANNA}\nbert:{BERT}\n")
    with a2a_process(folder, "--db", "memory:", "--host", "0.0.0.0", "--keys-file", str(folder / "keys")) as (url, _):
        yield url.replace("0.0.0.0", "127.0.0.1")


@pytest.mark.parametrize("path", ["/a2a", "/a2a/", "/a2a/rest/message:send"])
@pytest.mark.parametrize(("headers", "status"), FROM_ELSEWHERE)
def test_cross_origin_requests_do_not_run_the_agent(
    command: str, path: str, headers: dict[str, str], status: int
) -> None:
    with http(command) as client:
        answer = client.post(path, content=request(path), headers=headers)

    assert (answer.status_code, "You said: hi" in answer.text) == (status, status == 200)


def test_the_host_of_the_public_url_is_admitted(tmp_path: Path) -> None:
    with a2a_process(tmp_path, "--db", "memory:", "--url", "https://agents.example") as (_, process):
        [listening] = [each for each in psutil.Process(process.pid).net_connections() if each.status == "LISTEN"]
        with http(f"http://127.0.0.1:{listening.laddr.port}") as client:
            answers = [
                client.post("/a2a", content=request("/a2a"), headers={**JSON, "host": host}).status_code
                for host in ("agents.example", "evil.example")
            ]

    assert answers == [200, 403]


def test_only_the_a2a_routes_and_health_are_served(command: str) -> None:
    with http(command) as client:
        found = [
            client.get(path).status_code for path in ("/.well-known/agent-card.json", "/health", "/docs", "/v1/models")
        ]

    assert found == [200, 200, 404, 404]


def test_an_application_of_its_own_answers_probes() -> None:
    graph = create_graph_agent(ScriptedChatModel([]), checkpointer=InMemorySaver())
    with serving_ours(graph) as url, http(url) as client:
        found = [(client.get(path).json(), client.head(path).status_code) for path in ("/health", "/ready")]

    ready = {"ready": True, "checks": {"server": "ok", "database": "ok"}}
    assert found == [({"status": "ok"}, 200), (ready, 200)]


def test_a_body_over_the_limit_is_refused(command: str) -> None:
    with http(command) as client:
        answers = [
            client.post("/a2a", content=content, headers=JSON) for content in (b" " * 100_001, iter([b" " * 100_001]))
        ]

    assert [answer.status_code for answer in answers] == [413, 413]


def test_a_public_address_requires_keys(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(AGENT))
    command = [warm_python(), "-m", "graph_agent.cli", "a2a", "--port", "0", "--host", "0.0.0.0"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        "error: host='0.0.0.0' can be reached from other machines, and no API keys are set. Set GRAPH_AGENT_API_KEYS "
        "or --keys-file, or bind to 127.0.0.1.\n",
    )


@pytest.mark.parametrize("headers", [{}, {"x-api-key": "wrong"}, {"authorization": f"Basic {ANNA}"}])
def test_unauthenticated_callers_can_only_read_the_card(guarded: str, headers: dict[str, str]) -> None:
    with http(guarded, **headers) as client:
        card = client.get("/.well-known/agent-card.json")
        refused = [
            client.post(path, content=b"{", headers=JSON).status_code for path in ("/a2a", "/a2a/rest/message:send")
        ]
        refused.append(client.get("/a2a/rest/tasks").status_code)

    schemes = sorted(card.json()["securitySchemes"])
    assert (card.status_code, schemes, refused) == (200, ["bearer", "x-api-key"], [401, 401, 401])


def test_each_key_has_tasks_of_its_own(guarded: str) -> None:
    path = "/a2a/rest/message:send"
    with http(guarded, authorization=f"Bearer {ANNA}") as anna, http(guarded, **{"x-api-key": BERT}) as bert:
        task = anna.post(path, content=request(path, "one", contextId="talk"), headers=JSON).json()["task"]["id"]
        seen = [client.get(f"/a2a/rest/tasks/{task}").status_code for client in (anna, bert)]

    assert seen == [200, 404]


@pytest.fixture(scope="module")
def embedded() -> Iterator[str]:
    graph = create_graph_agent(ScriptedChatModel(["You said: hi"], cycle=True), checkpointer=InMemorySaver())
    with serving_ours(graph, settings=ServerSettings(max_body_bytes=100_000)) as url:
        yield url


@pytest.mark.parametrize("path", ["/a2a", "/a2a/rest/message:send"])
@pytest.mark.parametrize(("headers", "status"), FROM_ELSEWHERE)
def test_an_embedded_application_refuses_cross_origin_requests(
    embedded: str, path: str, headers: dict[str, str], status: int
) -> None:
    with http(embedded) as client:
        answer = client.post(path, content=request(path), headers=headers)

    assert (answer.status_code, "You said: hi" in answer.text) == (status, status == 200)


def test_an_embedded_application_bounds_bodies_and_takes_keys(embedded: str) -> None:
    graph = create_graph_agent(ScriptedChatModel(["You said: hi"], cycle=True), checkpointer=InMemorySaver())
    keys = (ApiKey(name="anna", key=SecretStr(ANNA)),)
    with http(embedded) as client:
        large = client.post("/a2a", content=b" " * 100_001, headers=JSON).status_code
    with serving_ours(graph, settings=ServerSettings(keys=keys)) as url, http(url) as client:
        found = [
            client.post("/a2a", content=request("/a2a"), headers={**JSON, **key}).status_code
            for key in ({}, {"x-api-key": ANNA})
        ]

    assert (large, found) == (413, [401, 200])
