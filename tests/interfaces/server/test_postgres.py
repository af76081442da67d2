"""Several server processes on one PostgreSQL database."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import time
from pathlib import Path

import httpx
import pytest
from a2a.types import GetTaskRequest

from tests.interfaces.server.process import COMPOSING_PARROT, serving
from tests.support.a2a_client import a2a_client, send_text, task_text
from tests.support.chat_client import (
    abort_through_other_process,
    answer,
    chat,
    events,
    send_until_accepted,
    slow_tool_orders,
    wait_for_event,
    wait_for_slow_tool,
)
from tests.support.postgres_server import on_postgres

pytestmark = on_postgres


def new_client(url: str) -> httpx.Client:
    """A client with a connection of its own, which any of the processes may take."""
    return httpx.Client(base_url=url, trust_env=False, verify=False, timeout=60)


def test_several_processes_serve_and_fork_one_session(postgres_url: str, tmp_path: Path) -> None:
    options = ["--workers", "2", "--db", postgres_url]
    with serving(tmp_path, *options) as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(send_until_accepted, server.url, f"message {i}") for i in range(8)]:
            future.result()
        with server.http() as http:
            inputs = [event["content"] for event in events(http, "shared", type="user_message")]
            kinds = [event["type"] for event in events(http, "shared")]
            fork = http.post("/sessions/shared/fork", json={"seq": 4}).json()["id"]
            forked = answer(chat(http, fork, "another second"))
        aborted = abort_through_other_process(server.url, tmp_path, pool)

    assert (sorted(inputs), kinds, forked, aborted) == (
        [f"message {i}" for i in range(8)],
        ["user_message", "status", "plan", "agent_response", "status"] * 8,
        f"You said: {inputs[0]} / another second",
        "ABORTED",
    )


def test_a_busy_session_is_refused_and_steered_through_every_process(postgres_url: str, tmp_path: Path) -> None:
    refused, steered = list[int](), list[int]()
    options = ["--workers", "2", "--db", postgres_url]
    with (
        serving(tmp_path, *options) as server,
        server.http() as http,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        running = pool.submit(chat, http, "kept", slow_tool_orders(tmp_path))
        wait_for_event(http, "kept", "tool_call")
        for i in range(12):
            with new_client(server.url) as other:
                refused.append(chat(other, "kept", "me too").status_code)
                steered.append(other.post("/sessions/kept/steer", json={"text": f"steer {i}"}).status_code)
        (tmp_path / "go").touch()
        ended = running.result()
        steering = [event["content"] for event in events(http, "kept", type="steering")]

    assert (refused, set(steered), ended.status_code, steering) == (
        [429] * 12,
        {202},
        200,
        [f"steer {i}" for i in range(12)],
    )


def test_after_a_kill_of_every_process_a_session_is_resumed(postgres_url: str, tmp_path: Path) -> None:
    order = f'!call look_up {{"key": "k"}}\n!then wait_for {{"file": "{tmp_path / "go"}"}}'
    with (
        serving(tmp_path, "--workers", "2", "--db", postgres_url) as server,
        server.http() as http,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        running = pool.submit(chat, http, "kept", order)
        wait_for_slow_tool(tmp_path)
        server.kill_all()
        with pytest.raises(httpx.HTTPError):
            running.result()
    (tmp_path / "go").touch()
    with serving(tmp_path, "--db", postgres_url) as server, server.http() as http:
        before = http.get("/sessions/kept").json()["status"]
        resumed = http.post("/sessions/kept/resume").json()
        results = [(one["name"], one["status"]) for one in events(http, "kept", type="tool_result")]

    # The second call may have run before the process was killed, so its state is unknown.
    assert (before, resumed["status"], resumed["pending"], results) == (
        "RUNNING",
        "COMPLETED",
        [],
        [("look_up", "success"), ("wait_for", "unknown")],
    )


def test_one_killed_process_leaves_its_session_to_the_other(postgres_url: str, tmp_path: Path) -> None:
    answers = list[int]()
    with serving(tmp_path, "--workers", "2", "--db", postgres_url) as server, server.http() as http:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(chat, http, "kept", slow_tool_orders(tmp_path))
            wait_for_slow_tool(tmp_path)
            os.kill(int((tmp_path / "go.pid").read_text()), signal.SIGKILL)
            with pytest.raises(httpx.HTTPError):
                running.result()
        (tmp_path / "go").touch()
        while 200 not in answers:
            try:
                with new_client(server.url) as other:
                    answers.append(chat(other, "kept", "and now?").status_code)
            except httpx.HTTPError:
                time.sleep(0.05)  # it reached the killed process, which is restarting

    assert answers == [200]


async def test_a2a_tasks_are_seen_through_every_process(postgres_url: str, tmp_path: Path) -> None:
    name = "a conversation " + "x" * 100
    with serving(tmp_path, "--workers", "2", "--db", postgres_url, agent=COMPOSING_PARROT) as server:
        async with a2a_client(server.url, "none") as client:
            task = await send_text(client, "hi", name)
        found = []
        for _ in range(8):
            async with a2a_client(server.url, "none") as client:
                found.append(task_text(await client.get_task(GetTaskRequest(id=task.id))))

    assert found == ["You said: hi"] * 8
