"""Requests repeated without a key after their client or server was lost: no call that may write runs twice."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from tests.interfaces.server.booking import BOOKER, bookings
from tests.interfaces.server.process import Served, eventually, serving
from tests.support.chat_client import CHAT
from tests.support.postgres_server import on_postgres


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=on_postgres)])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Served, Served]]:
    """Two servers on one database."""
    is_postgres = request.param == "postgres"
    url = request.getfixturevalue("postgres_url") if is_postgres else f"sqlite:///{tmp_path / 'sessions.db'}"
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    with ExitStack() as stack:
        first, second = (stack.enter_context(serving(folder, "--db", url, agent=BOOKER)) for folder in folders)
        yield first, second


def body(folder: Path, **fields: Any) -> dict[str, Any]:
    return {"model": "booker", "messages": [{"role": "user", "content": f"book {folder}"}], **fields}


def ask(server: Served, folder: Path, **fields: Any) -> tuple[str, str | None]:
    """The text of an answer, and the status that marks a failed run."""
    with server.http() as http:
        answered = http.post(CHAT, json=body(folder, **fields)).json()
    return "".join(answered["choices"][0]["message"]["content"].split()), answered.get("run_status")


@pytest.mark.sampled(2)
def test_another_worker_continues_a_failed_run(servers: tuple[Served, Served], tmp_path: Path) -> None:
    (tmp_path / "fail").touch()
    failed = ask(servers[0], tmp_path)
    (tmp_path / "fail").unlink()
    continued, new = ask(servers[1], tmp_path), ask(servers[0], tmp_path)

    assert (failed[1], continued, new) == ("FAILED", ("Ibookit.booked", None), ("Ibookit.booked", None))
    assert bookings(tmp_path) == 2


@pytest.mark.sampled(2)
def test_equal_requests_to_two_workers_run_one_at_a_time(servers: tuple[Served, Served], tmp_path: Path) -> None:
    (tmp_path / "fail-once").touch()
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda i: ask(servers[i % 2], tmp_path), range(6)))

    assert sorted(str(status) for _, status in answers) == ["FAILED", *["None"] * 5]
    assert bookings(tmp_path) == 5


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("place", "known"), [("wait", "Ibookit.booked"), ("hold", "repeatingit.")])
def test_a_request_whose_server_is_killed_after_a_write_is_continued(
    servers: tuple[Served, Served], tmp_path: Path, place: str, known: str
) -> None:
    (tmp_path / place).touch()
    with ThreadPoolExecutor(2) as pool:
        lost = pool.submit(ask, servers[0], tmp_path)
        eventually((tmp_path / f"{place}.reached").exists)
        waiting = pool.submit(ask, servers[1], tmp_path)
        servers[0].kill_all()
        (tmp_path / place).unlink()
        text, status = waiting.result()

    # The result of a call that was killed is unknown.
    assert (isinstance(lost.exception(), httpx.TransportError), known in text, text) == (True, True, text)
    assert (status, bookings(tmp_path)) == (None, 1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stream", [True, False])
def test_a_request_whose_client_leaves_after_a_write_is_continued(
    servers: tuple[Served, Served], tmp_path: Path, stream: bool
) -> None:
    (tmp_path / "wait").touch()
    content = json.dumps(body(tmp_path, stream=stream)).encode()
    url = httpx.URL(servers[0].url)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: {url.host}\r\ncontent-type: application/json\r\n"
    with socket.create_connection((url.host, url.port)) as connection:
        connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        eventually((tmp_path / "wait.reached").exists)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, servers[1], tmp_path)
        (tmp_path / "wait").unlink()

    assert (waiting.result(), bookings(tmp_path)) == (("Ibookit.booked", None), 1)


@pytest.mark.sampled(2)
def test_a_request_over_a_web_socket_is_continued_over_another_and_over_http(
    servers: tuple[Served, Served], tmp_path: Path
) -> None:
    (tmp_path / "fail").touch()
    message = {"type": "message", "role": "user", "content": f"book {tmp_path}"}
    given = {"model": "booker", "input": [message], "store": False, "stream": True}
    ends = []
    for number, server in enumerate(servers):
        url = f"{server.url.replace('http', 'ws', 1)}/v1/responses"
        with connect(url, proxy=None, open_timeout=60) as connection:
            metadata = {"turn_id": "t1", "started-ms": str(number)}
            connection.send(json.dumps({"type": "response.create", **given, "client_metadata": metadata}))
            while (event := json.loads(connection.recv(60)))["type"] not in ("response.completed", "error"):
                pass
            ends.append(event["response"].get("run_status"))
    (tmp_path / "fail").unlink()
    with servers[0].http() as http:
        continued = http.post("/v1/responses", json={**given, "stream": False, "client_metadata": {"turn_id": "t1"}})

    assert (ends, continued.json()["status"], "run_status" in continued.json()) == (["FAILED"] * 2, "completed", False)
    assert bookings(tmp_path) == 1
