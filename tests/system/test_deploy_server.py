"""The commands of the manifests in `deploy/`, started on loopback with the manifests' environment and files."""

from __future__ import annotations

import concurrent.futures
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.interfaces.server.process import eventually
from tests.support.containers import (
    DEPLOY,
    Running,
    of_compose,
    of_deployment,
    started,
    wait_until_ready,
)
from tests.support.image import read_stages
from tests.support.kustomize import one, render
from tests.support.openai_stub import Reply, StubFactory, openai_stub
from tests.support.postgres_server import on_postgres

__all__ = ["openai_stub"]

pytestmark = on_postgres

MOCK = render(DEPLOY / "kubernetes/overlays/mock")
CLIENT, PROMETHEUS = "mock-key-of-a-client", "mock-key-of-prometheus"
QUESTION = {"model": "helper", "messages": [{"role": "user", "content": "How many chairs, and from whom?"}]}
LONG = "word " * 40


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The MCP server and the A2A agent of the overlay; the variables with their addresses."""
    folder = tmp_path_factory.mktemp("peers")
    with (
        started(of_deployment(MOCK, "stock"), folder) as stock,
        started(of_deployment(MOCK, "researcher"), folder) as researcher,
    ):
        wait_until_ready(researcher)
        yield {"STOCK_URL": f"{stock.url}/mcp", "RESEARCHER_URL": researcher.url}


def health_check(running: Running) -> int:
    """The exit status of the image's health check in a container."""
    return running.run(*read_stages(DEPLOY / "Dockerfile")[-1].last("HEALTHCHECK").words[1:])


def test_the_mock_overlay_answers_with_a_tool_an_agent_and_a_database(
    tmp_path: Path, peers: dict[str, str], postgres_url: str
) -> None:
    [metric] = one(MOCK, "HorizontalPodAutoscaler", "graph-agent")["spec"]["metrics"]
    with started(of_deployment(MOCK, "graph-agent"), tmp_path, GRAPH_AGENT_DB=postgres_url, **peers) as server:
        ready = wait_until_ready(server)
        with server.http(CLIENT) as client, server.http(PROMETHEUS) as prometheus, server.http() as kubelet:
            healthy = kubelet.get("/health", headers={"host": "10.1.2.3:8000"})
            answer = client.post("/v1/chat/completions", json=QUESTION, headers={"x-session-id": "s1"})
            results = client.get("/memory/sessions/s1/events").json()["events"]
            metrics = prometheus.get("/metrics").text
            refused = [
                kubelet.get("/metrics").status_code,
                kubelet.post("/v1/chat/completions", json=QUESTION).status_code,
            ]
        checks = [health_check(server)]
        status = server.stop()
        checks.append(health_check(server))

    assert ready == {"ready": True, "checks": {"server": "ok", "model": "ok", "database": "ok", "mcp:stock": "ok"}}
    assert (healthy.status_code, refused, status, checks) == (200, [401, 401], 0, [0, 1])
    assert answer.json()["choices"][0]["message"]["content"] == "3 chairs are in stock; Holm supplies them."
    contents = {
        each["type"]: each["content"] for each in results if "result" in each["type"] or "response" in each["type"]
    }
    [stock] = contents["tool_result"]
    assert (stock["text"], contents["delegation_response"]) == ("3 in stock", "Chairs are supplied by Holm.")
    assert f"\n{metric['pods']['metric']['name']} 0.0\n" in metrics


def test_sigterm_lets_a_streamed_answer_finish_and_takes_the_pod_out_of_service(
    tmp_path: Path, peers: dict[str, str], openai_stub: StubFactory
) -> None:
    gate = threading.Event()
    stub = openai_stub(Reply(LONG, before=lambda chunk: chunk < 3 or gate.wait(60)))
    # As in production: with the base's settings and a provider, not a script.
    base = of_deployment(render(DEPLOY / "kubernetes/base"), "graph-agent")
    own = {"GRAPH_AGENT_DB": f"sqlite:///{tmp_path}/s.db", "GRAPH_AGENT_API_KEYS": f"client:{CLIENT}"}
    provider = {"OPENAI_BASE_URL": stub.base_url, "OPENAI_API_KEY": "sk-stub"}
    first = threading.Event()

    def stream(server: Running) -> list[str]:
        with (
            server.http(CLIENT) as http,
            http.stream("POST", "/v1/chat/completions", json={**QUESTION, "stream": True}) as answer,
        ):
            lines = []
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    lines.append(line.removeprefix("data: "))
                    if "word" in line:
                        first.set()
            return lines

    with (
        concurrent.futures.ThreadPoolExecutor(1) as pool,
        started(base, tmp_path, **own, **provider, **peers) as server,
    ):
        try:
            wait_until_ready(server)
            streamed = pool.submit(stream, server)
            eventually(lambda: first.is_set() or streamed.done())
            server.process.terminate()
            eventually(lambda: not is_in_service(server))
            refuses, was_running = is_refused(server), server.process.poll() is None
        finally:
            gate.set()
        lines = streamed.result(60)
        status = server.process.wait(60)

    assert (refuses, was_running, status) == (True, True, 0)
    assert (lines[-1], text_of(lines[:-1])) == ("[DONE]", LONG.strip())


def is_in_service(server: Running) -> bool:
    """Whether a readiness probe succeeds."""
    try:
        with server.http() as http:
            return http.get("/ready").is_success
    except httpx.TransportError:
        return False


def is_refused(server: Running) -> bool:
    """Whether a new request is refused, by the server or because it no longer listens."""
    try:
        with server.http(CLIENT) as http:
            return http.post("/v1/chat/completions", json=QUESTION).status_code == 503
    except httpx.TransportError:
        return True


def text_of(lines: list[str]) -> str:
    """The text of a streamed answer."""
    deltas: list[Any] = [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas).strip()


def test_the_compose_file_serves_the_same_agent(tmp_path: Path, peers: dict[str, str]) -> None:
    variables = {
        "GRAPH_AGENT_API_KEYS": f"client:{CLIENT}",
        "RESEARCHER_KEY": "mock-key-of-researcher",
        "POSTGRES_PASSWORD": "none",
        "DEBUG_MOCK_RESPONSES": '["Hello!"]',
    }
    database = f"sqlite:///{tmp_path}/s.db"
    with started(of_compose("server", variables), tmp_path, GRAPH_AGENT_DB=database, **peers) as server:
        ready = wait_until_ready(server)["ready"]
        with server.http(CLIENT) as http:
            answer = http.post("/v1/chat/completions", json=QUESTION).json()["choices"][0]["message"]["content"]
        status = server.stop()

    assert (ready, answer, status) == (True, "Hello!", 0)


def test_the_compose_file_requires_keys() -> None:
    with pytest.raises(AssertionError, match="GRAPH_AGENT_API_KEYS is required"):
        of_compose("server", {})


@pytest.mark.parametrize("name", ["stock", "researcher"])
def test_peers_have_the_same_command_and_files_in_both(name: str) -> None:
    there = of_compose(name, {"RESEARCHER_KEY": "x"})
    here = of_deployment(MOCK, name)

    assert (there.command, there.files) == (here.command, here.files)
