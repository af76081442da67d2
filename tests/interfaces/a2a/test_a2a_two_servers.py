"""Two servers on one SQLite file, as during a rolling restart: each sees the running tasks of the other."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from a2a.types import CancelTaskRequest, GetTaskRequest, ListTasksRequest

from tests.interfaces.server.process import serving
from tests.support.a2a_client import WatchedTask, a2a_client, message_request, state_name
from tests.support.a2a_process import AGENT, a2a_process
from tests.support.gates import until

SUBMITTED, WORKING = "TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"
COMPLETED, CANCELED = "TASK_STATE_COMPLETED", "TASK_STATE_CANCELED"


@contextmanager
def served(kind: str, folder: Path, name: str) -> Iterator[tuple[str, Any]]:
    """A server on the folder's database; yield its address and its process."""
    home = folder / name
    home.mkdir()
    database = ["--db", f"sqlite:///{folder / 'sessions.db'}"]
    if kind == "a2a":
        with a2a_process(home, *database) as (url, process):
            yield url, process
    else:
        with serving(home, *database, agent=AGENT) as server:
            yield server.url, server.process


def age_tasks(folder: Path) -> None:
    """Set the last update of the tasks years back."""
    with closing(sqlite3.connect(folder / "sessions.db", timeout=30)) as connection, connection:
        old = "2020-01-01T00:00:00Z"
        changed = connection.execute("UPDATE tasks SET status = json_set(status, '$.timestamp', ?)", [old]).rowcount
    assert changed == 1


@pytest.mark.parametrize("kind", ["a2a", "serve"])
async def test_a_running_task_is_visible_to_another_server(kind: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with served(kind, tmp_path, "one") as (first, _), served(kind, tmp_path, "two") as (second, _):
        async with a2a_client(first) as one, a2a_client(second, streaming=False) as two:
            watched = WatchedTask(one, message_request(f'!call wait_for {{"file": "{go}"}}', context_id="talk"))
            id_ = await watched.known()
            await until((tmp_path / "go.pid").exists)
            while state_name(await two.get_task(GetTaskRequest(id=id_))) == SUBMITTED:
                await asyncio.sleep(0.02)
            seen = [state_name(await two.get_task(GetTaskRequest(id=id_)))]
            age_tasks(tmp_path)
            seen.append(state_name(await two.get_task(GetTaskRequest(id=id_))))
            listed = [state_name(task) for task in (await two.list_tasks(ListTasksRequest())).tasks]
            go.touch()
            await watched.over
            ended = [state_name(await client.get_task(GetTaskRequest(id=id_))) for client in (one, two)]

    assert (seen, listed, ended, watched.seen[-1][0]) == ([WORKING] * 2, [WORKING], [COMPLETED] * 2, COMPLETED)


async def test_a_running_task_is_cancelled_through_another_server(tmp_path: Path) -> None:
    with served("serve", tmp_path, "one") as (first, _), served("serve", tmp_path, "two") as (second, _):
        async with a2a_client(first) as one, a2a_client(second, streaming=False) as two:
            order = f'!call wait_for {{"file": "{tmp_path / "go"}"}}'
            watched = WatchedTask(one, message_request(order, context_id="talk"))
            id_ = await watched.known()
            await until((tmp_path / "go.pid").exists)
            cancelled = state_name(await two.cancel_task(CancelTaskRequest(id=id_)))
            await watched.over

    assert (cancelled, watched.seen[-1][0]) == (CANCELED, CANCELED)


async def test_a_task_of_a_killed_server_is_failed_by_another_server(tmp_path: Path) -> None:
    with served("a2a", tmp_path, "one") as (first, process), served("a2a", tmp_path, "two") as (second, _):
        async with a2a_client(first) as one, a2a_client(second, streaming=False) as two:
            order = f'!call wait_for {{"file": "{tmp_path / "go"}"}}'
            watched = WatchedTask(one, message_request(order, context_id="talk"))
            id_ = await watched.known()
            await until((tmp_path / "go.pid").exists)
            process.kill()
            process.wait()
            await asyncio.gather(watched.over, return_exceptions=True)
            age_tasks(tmp_path)
            found = await two.get_task(GetTaskRequest(id=id_))

    assert (state_name(found), "stopped while it ran" in str(found.status.message)) == ("TASK_STATE_FAILED", True)
