"""Whether requests can be answered, and how long one may have to wait to be told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.server import readiness
from graph_agent.server.readiness import Readiness
from tests.gates import Gate
from tests.server.hosting import running
from tests.server.process import serving

AGENT = {"name": "real", "model": "openai:gpt-4o-mini"}


@contextmanager
def provider(status: int, asked: list[str]) -> Iterator[str]:
    """A provider that answers everything with one status."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.command} {self.path}")
            body = b'{"object": "list", "data": []}' if status == 200 else b'{"error": {"message": "no"}}'
            self.send_response(status)
            for name, value in (("content-type", "application/json"), ("content-length", str(len(body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def probed(folder: Path, base_url: str) -> list[tuple[int, str]]:
    environment = {"OPENAI_API_KEY": "sk-none", "OPENAI_BASE_URL": base_url}
    with serving(folder, agent=AGENT, environment=environment, up="/health") as server, server.http() as http:
        answers = [http.get("/ready") for _ in range(3)]
    return [(answer.status_code, answer.json()["checks"]["model"]) for answer in answers]


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (200, (200, "ok")),
        (404, (200, "ok")),
        (405, (200, "ok")),
        (401, (503, "auth")),
        (403, (503, "permission")),
        (500, (503, "unreachable")),
    ],
)
def test_the_models_endpoint_is_asked_once_for_many_probes(tmp_path: Path, status: int, told: tuple[int, str]) -> None:
    asked: list[str] = []
    with provider(status, asked) as base_url:
        answers = probed(tmp_path, base_url)

    assert (answers, asked) == ([told] * 3, ["GET /v1/models"])


def test_an_endpoint_that_is_not_there_is_no_model(tmp_path: Path) -> None:
    with provider(200, []) as gone:
        pass

    assert probed(tmp_path, gone) == [(503, "unreachable")] * 3


async def test_a_part_that_does_not_answer_is_asked_once_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "CHECK_S", 0.01)
    gate = Gate()
    looks: list[str] = []
    async with asyncio.timeout(30), running(create_graph_agent(ScriptedChatModel(["one"]))) as runs:

        async def stuck(config: Any) -> None:
            looks.append("database")
            await gate.passing()

        monkeypatch.setattr(runs.host.saver, "aget_tuple", stuck)
        ready = Readiness(runs)
        told = [await ready.checks() for _ in range(3)]
        looked = list(looks)
        gate.open()
        while (last := await ready.checks())["database"] == "timeout":
            await asyncio.sleep(0)

    late = {"server": "ok", "model": "ok", "database": "timeout"}
    assert (told, looked, last) == ([late] * 3, ["database"], {**late, "database": "ok"})


async def test_a_part_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(config: Any) -> None:
        raise OSError("no disk sk-secretsecretsecret")

    async with asyncio.timeout(30), running(create_graph_agent(ScriptedChatModel(["one"]))) as runs:
        monkeypatch.setattr(runs.host.saver, "aget_tuple", broken)
        told = await Readiness(runs).checks()

    assert told == {"server": "ok", "model": "ok", "database": "failed"}
