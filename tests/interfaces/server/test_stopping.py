"""Stops, kills and restarts, and several processes on one database."""

from __future__ import annotations

import concurrent.futures
import signal
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.interfaces.server.process import eventually, serving
from tests.support.chat_client import (
    abort_through_other_process,
    answer,
    chat,
    is_up,
    send_until_accepted,
    slow_tool_orders,
    wait_for_event,
    wait_for_slow_tool,
)


def test_sigterm_stops_a_session_at_its_next_boundary(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.http() as http, concurrent.futures.ThreadPoolExecutor(3) as pool:
        whole = pool.submit(chat, http, "kept", slow_tool_orders(tmp_path))
        stream = pool.submit(chat, http, "streamed", slow_tool_orders(tmp_path), stream=True)
        message = {
            "model": "parrot",
            "max_tokens": 100,
            "metadata": {"session_id": "message"},
            "messages": [{"role": "user", "content": slow_tool_orders(tmp_path)}],
        }
        anthropic = pool.submit(http.post, "/v1/messages", json=message)
        for session in ("kept", "streamed", "message"):
            wait_for_event(http, session, "tool_call")
        server.term()
        eventually(lambda: not is_up(server.url))
        (tmp_path / "go").touch()
        response = whole.result()
        streamed = stream.result().text
        overloaded = anthropic.result()
        status = server.process.wait(60)
    with serving(tmp_path) as server, server.http() as http:
        before = http.get("/sessions/kept").json()["status"]
        resumed = http.post("/sessions/kept/resume").json()
        went_on = chat(http, "streamed", "hello")

    assert (response.status_code, response.json()["error"]["code"], response.headers["retry-after"]) == (
        503,
        "server_stopping",
        "5",
    )
    assert (overloaded.status_code, overloaded.json()["error"]["type"]) == (529, "overloaded_error")
    assert ('"code":"server_stopping"' in streamed, "[DONE]" in streamed, status) == (True, False, 0)
    assert (before, resumed["status"]) == ("RUNNING", "COMPLETED")
    assert resumed["answer"].endswith(f"wait_for said: {tmp_path / 'go'} is there; look_up said: the value of k")
    assert answer(went_on).startswith("You said: ")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_second_sigterm_stops_at_once(tmp_path: Path, workers: int) -> None:
    with (
        serving(tmp_path, "--workers", str(workers)) as server,
        server.http() as http,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        running = pool.submit(chat, http, "kept", slow_tool_orders(tmp_path))
        wait_for_slow_tool(tmp_path)
        server.term()
        eventually(lambda: not is_up(server.url))
        server.term()
        response = running.result()
        status = server.process.wait(60)
    with serving(tmp_path) as server, server.http() as http:
        went_on = chat(http, "kept", "hello")

    assert (response.status_code, status, answer(went_on)) == (
        503,
        0,
        f"You said: {slow_tool_orders(tmp_path)} / hello",
    )


def test_a_signal_to_every_process_counts_once(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--workers", "2") as server,
        server.http() as http,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        running = pool.submit(chat, http, "kept", slow_tool_orders(tmp_path))
        wait_for_slow_tool(tmp_path)
        # As terminals and init systems do; the parent then forwards it to the workers once more.
        for process in [*psutil.Process(server.process.pid).children(), psutil.Process(server.process.pid)]:
            process.send_signal(signal.SIGTERM)
        eventually(lambda: "Terminated child process" in server.log.read_text())
        (tmp_path / "go").touch()
        response = running.result()
        status = server.process.wait(60)
    with serving(tmp_path) as server, server.http() as http:
        resumed = http.post("/sessions/kept/resume").json()

    assert (response.status_code, status) == (503, 0)
    assert resumed["answer"].endswith(f"wait_for said: {tmp_path / 'go'} is there; look_up said: the value of k")


@pytest.mark.parametrize("how", ["resume", "input"])
def test_after_a_kill_a_session_goes_on(tmp_path: Path, how: str) -> None:
    with serving(tmp_path) as server, server.http() as http, concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            chat, http, "kept", f'!call look_up {{"key": "k"}}\n!then wait_for {{"file": "{tmp_path / "go"}"}}'
        )
        wait_for_slow_tool(tmp_path)
        server.process.kill()
        with pytest.raises(httpx.HTTPError):
            running.result()
    (tmp_path / "go").touch()
    with serving(tmp_path) as server, server.http() as http:
        before = http.get("/sessions/kept").json()["status"]
        if how == "resume":
            http.post("/sessions/kept/resume")
        else:
            chat(http, "kept", "hello")
        info = http.get("/sessions/kept").json()
        results = http.get("/memory/sessions/kept/events", params={"type": "tool_result"}).json()["events"]

    # The second call may have run before the process was killed, so its state is unknown.
    assert (before, info["status"], info["pending"]) == ("RUNNING", "COMPLETED", [])
    assert [(one["name"], one["status"]) for one in results] == [("look_up", "success"), ("wait_for", "unknown")]


def test_several_processes_serve_one_session(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2") as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
        with server.http() as http:
            until_busy = [pool.submit(send_until_accepted, server.url, f"message {i}") for i in range(8)]
            for future in until_busy:
                future.result()
            inputs = http.get("/memory/sessions/shared/events", params={"type": "user_message"}).json()["events"]
            events: list[Any] = http.get("/memory/sessions/shared/events").json()["events"]
        aborted = abort_through_other_process(server.url, tmp_path, pool)

    assert sorted(event["content"] for event in inputs) == [f"message {i}" for i in range(8)]
    assert [event["type"] for event in events] == ["user_message", "status", "plan", "agent_response", "status"] * 8
    assert aborted == "ABORTED"
