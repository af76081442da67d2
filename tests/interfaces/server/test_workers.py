"""Several workers of one server: limits and metrics are shared."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from graph_agent.interfaces.server.admission.gate import RequestLimits
from graph_agent.interfaces.server.admission.worker_folder import SharedLimits
from graph_agent.interfaces.server.problems import ProblemError
from tests.interfaces.server.process import PARROT, Served, eventually, refused, serving
from tests.support.chat_client import chat, events, is_up
from tests.support.mcp_servers.running import asking

CHAT = "/v1/chat/completions"
CALLERS = ["held", "rated", "killed", *(f"scout{i}" for i in range(40))]
PER_MINUTE = 6


def key(caller: str) -> dict[str, str]:
    return {"x-api-key": f"{caller}-0123456789abcdef"}


def post_chat(http: httpx.Client, caller: str, text: str) -> httpx.Response:
    body: dict[str, Any] = {"model": "parrot", "messages": [{"role": "user", "content": text}]}
    return http.post(CHAT, json=body, headers=key(caller))


@contextmanager
def stopped(server: Served) -> Iterator[Served]:
    """A server whose workers are stopped with it."""
    try:
        yield server
    finally:
        server.term()
        server.process.wait(60)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "keys").write_text("".join(f"{name}:{key(name)['x-api-key']}\n" for name in CALLERS))
    options = ["--workers", "2", "--keys-file", str(tmp_path / "keys"), "--set", "concurrent_requests=1"]
    with serving(tmp_path, *options, "--set", f"requests_per_minute={PER_MINUTE}") as server, stopped(server):
        yield server


@contextmanager
def one_client_each(server: Served) -> Iterator[tuple[dict[int, httpx.Client], int]]:
    """A client with a connection of its own to each worker, by the worker's number; and how many requests it took."""
    found: dict[int, httpx.Client] = {}
    asked = 0
    try:
        while len(found) < 2:
            http = server.http(limits=httpx.Limits(max_connections=1))
            pid = int(post_chat(http, f"scout{asked // PER_MINUTE}", "!pid").json()["choices"][0]["message"]["content"])
            asked += 1
            if found.setdefault(pid, http) is not http:
                http.close()
        yield found, asked
    finally:
        for http in found.values():
            http.close()


def test_an_answer_to_an_mcp_server_reaches_the_worker_of_the_call(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("".join(f"{name}:{key(name)['x-api-key']}\n" for name in CALLERS))
    options = ["--workers", "2", "--keys-file", str(tmp_path / "keys")]
    agent = {**PARROT, "mcp_servers": {"hotel": asking(tmp_path)}}
    with serving(tmp_path, *options, agent=agent) as server, stopped(server), one_client_each(server) as (clients, _):
        first, second = clients.values()
        body: dict[str, Any] = {
            "model": "parrot",
            "messages": [{"role": "user", "content": '!call swap {"room": "1"}'}],
        }
        first.post(CHAT, json={**body, "metadata": {"session_id": "s"}}, headers=key("held"))
        waiting, ended = (
            second.post("/sessions/s/resume", json={"answer": {"sure": sure}}, headers=key("held")).json()
            for sure in (True, False)
        )

    assert (waiting["interrupts"][0]["value"]["message"], ended["status"]) == ("Sure?", "COMPLETED")
    assert ended["answer"].endswith("swap said: True False")
    assert (tmp_path / "effects").read_text() == "begin 1\nswapped 1\n"


def counted(http: httpx.Client, name: str) -> float:
    lines = http.get("/metrics", headers=key("held")).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_limits_and_counts_are_those_of_all_workers(two: Served, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with one_client_each(two) as (clients, asked), two.http() as other:
        first, second = clients.values()
        rated = [post_chat(http, "rated", "hi").status_code for http in (first, second) * (PER_MINUTE // 2 + 1)]
        runs = [counted(http, "graph_agent_runs_total") for http in (first, second)]
        with waiting(two, "held", go):
            eventually(lambda: counted(other, "graph_agent_requests_under_way") >= 1)
            held = [
                (post_chat(http, "held", "hi").status_code, counted(http, "graph_agent_requests_under_way"))
                for http in (first, second)
            ]
            go.touch()

    assert (rated, runs) == ([200] * PER_MINUTE + [429] * 2, [asked + PER_MINUTE] * 2)
    assert held == [(429, 1.0)] * 2


def test_slots_of_a_killed_worker_are_released(two: Served, tmp_path: Path) -> None:
    with one_client_each(two) as (clients, _):
        (pid, doomed), (_, other) = clients.items()
        with waiting(two, "killed", tmp_path / "never", doomed):
            eventually(lambda: counted(other, "graph_agent_requests_under_way") >= 1)
            refused_before = post_chat(other, "killed", "hi").status_code
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: post_chat(other, "killed", "hi").status_code == 200)
        # Its successor, with a count of zero, is up.
        eventually(lambda: counted(other, "graph_agent_requests_under_way") == 0)

    assert refused_before == 429


def test_each_process_with_a_memory_of_its_own_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, ["--workers", "2", "--db", "memory:"]) == (
        2,
        "error: --workers 2 with db='memory:': each process would have sessions of its own. Use one process, or a "
        "database that they share, e.g. --db sqlite:///graph_agent.db.",
    )


def test_limits_are_shared_when_another_worker_is_still_making_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(tmp_path / "limits.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        waited: list[float] = []

        def sleep(seconds: float) -> None:
            if not waited:
                other.execute("ROLLBACK")
            waited.append(seconds)

        monkeypatch.setattr(time, "sleep", sleep)
        limits = SharedLimits(tmp_path, "requests", 1)

    limits.enter("a")
    with pytest.raises(ProblemError):
        limits.enter("a")
    assert waited


@pytest.mark.parametrize("shared", [False, True])
def test_both_kinds_of_limits_count_alike(tmp_path: Path, shared: bool) -> None:
    clock = [0.0]
    limits = (
        SharedLimits(tmp_path, "requests", 1, 2, clock=lambda: clock[0])
        if shared
        else RequestLimits(1, 2, clock=lambda: clock[0])
    )
    retries: list[Any] = []
    for clock[0], caller, again in [
        (0.0, "a", True),
        (10.0, "a", False),
        (20.0, "a", False),
        (20.0, "b", False),
        (61.0, "a", False),
    ]:
        try:
            with limits.slot(caller):
                retries.append(None)
                if again:
                    limits.enter(caller)
        except ProblemError as problem:
            retries.append(problem.retry_after_s)

    assert retries == [None, 1, None, 40.0, None, None]


@contextmanager
def waiting(server: Served, caller: str, file: Path, http: httpx.Client | None = None) -> Iterator[None]:
    """A request that runs until a file exists, or its worker is gone."""
    with server.http() as own, ThreadPoolExecutor(1) as pool:
        request = pool.submit(post_chat, http or own, caller, f"!wait {file}")
        yield
        assert request.exception() is None or isinstance(request.exception(), httpx.TransportError)


def test_workers_stop_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2") as server:
        server.process.kill()
        while is_up(server.url):
            time.sleep(0.05)
    with serving(tmp_path) as again, again.http() as http:
        assert http.get("/ready").status_code == 200


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_serve_records_requests_in_each_process(tmp_path: Path, workers: str) -> None:
    with serving(tmp_path, "--record", "--workers", workers) as server, server.http() as http:
        chat(http, "s", "hello")
        recorded = events(http, "s", type="model_request")

    assert [request["purpose"] for request in recorded] == ["plan", "answer"]
