"""A2A tasks run by one worker process and reached through another."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from a2a.client import Client
from a2a.types import CancelTaskRequest, GetTaskRequest, SubscribeToTaskRequest, Task
from a2a.utils.errors import UnsupportedOperationError

from tests.interfaces.server.process import COMPOSING_PARROT, Served, serving
from tests.support.a2a_client import (
    WatchedTask,
    a2a_client,
    message_request,
    send_text,
    state_name,
    task_text,
)
from tests.support.chat_client import events
from tests.support.postgres_server import on_postgres

pytestmark = pytest.mark.sampled(2)  # one kind of database for each test, in turn

CANCELED, COMPLETED = "TASK_STATE_CANCELED", "TASK_STATE_COMPLETED"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=on_postgres)])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """An agent served by two processes on one database."""
    database = ["--db", request.getfixturevalue("postgres_url")] if request.param == "postgres" else []
    with serving(tmp_path, "--workers", "2", *database, agent=COMPOSING_PARROT) as served:
        yield served


def order(folder: Path, name: str = "go") -> Any:
    return message_request(f'!call wait_for {{"file": "{folder / name}"}}', context_id="talk")


class Connections:
    """Clients, each with a connection to a process that is known.

    Args:
        server: The server.
        stack: Closes them.
    """

    def __init__(self, server: Served, stack: AsyncExitStack) -> None:
        self._url = server.url
        self._stack = stack

    async def client_of_other_process(self, *pids: str) -> tuple[Client, str]:
        """A client of a process that is none of these, and that process's number."""
        while True:
            # A paused process may hold a lock that the others wait for; then it is resumed briefly.
            with suppress(TimeoutError), standing_still(pids):
                async with asyncio.timeout(2):
                    client = await self._stack.enter_async_context(a2a_client(self._url, "none"))
                break
        return client, task_text(await send_text(client, "!pid"))


@contextmanager
def standing_still(pids: Sequence[str]) -> Iterator[None]:
    """Pause some processes, so that they accept no connections."""
    for pid in pids:
        os.kill(int(pid), signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(int(pid), signal.SIGCONT)


@asynccontextmanager
async def connections(server: Served) -> AsyncIterator[Connections]:
    async with AsyncExitStack() as stack:
        yield Connections(server, stack)


async def running_process(folder: Path) -> str:
    """The number of the process whose tool waits for `go`."""
    while not (pid := await asyncio.to_thread(_read, folder / "go.pid")):
        await asyncio.sleep(0.01)
    return pid


def _read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


async def test_cancelling_through_another_process_stops_the_run(server: Served, tmp_path: Path) -> None:
    async with connections(server) as clients:
        one, pid = await clients.client_of_other_process()
        watched = WatchedTask(one, order(tmp_path))
        ran_in = await running_process(tmp_path)
        other, _ = await clients.client_of_other_process(pid)
        cancelled = await other.cancel_task(CancelTaskRequest(id=await watched.known()))
        await watched.over
        kept = [await client.get_task(GetTaskRequest(id=cancelled.id)) for client in (one, other)]
    with server.http() as http:
        status = http.get("/sessions/talk").json()["status"]
        results = [event["status"] for event in events(http, "talk", type="tool_result")]

    assert (ran_in, state_name(cancelled), [state_name(task) for task in kept], status, results) == (
        pid,
        CANCELED,
        [CANCELED] * 2,
        "ABORTED",
        ["unknown"],
    )
    assert [update for update in watched.seen if update[0] == CANCELED] == [watched.seen[-1]]


async def test_cancelling_a_task_that_waits_for_its_turn_leaves_the_one_before_it(
    server: Served, tmp_path: Path
) -> None:
    async with connections(server) as clients:
        one, pid = await clients.client_of_other_process()
        first = WatchedTask(one, order(tmp_path))
        await running_process(tmp_path)
        other, other_pid = await clients.client_of_other_process(pid)
        same, _ = await clients.client_of_other_process(other_pid)
        second = WatchedTask(same, message_request("me too", context_id="talk"))
        cancelled = await other.cancel_task(CancelTaskRequest(id=await second.known()))
        await second.over
        (tmp_path / "go").touch()
        await first.over
    with server.http() as http:
        inputs = [event["content"] for event in events(http, "talk", type="user_message")]

    assert (state_name(cancelled), second.seen, first.seen[-1][0], len(inputs)) == (
        CANCELED,
        [("task", "TASK_STATE_SUBMITTED"), (CANCELED, "")],
        COMPLETED,
        1,
    )


async def test_a_task_of_another_process_is_watched_and_takes_no_message_here(server: Served, tmp_path: Path) -> None:
    async with connections(server) as clients:
        one, pid = await clients.client_of_other_process()
        first = WatchedTask(one, order(tmp_path))
        await running_process(tmp_path)
        other, _ = await clients.client_of_other_process(pid)
        task = await other.get_task(GetTaskRequest(id=await first.known()))
        with pytest.raises(UnsupportedOperationError, match="is running"):
            await send_more(other, task)
        seen = []
        async for event in other.subscribe(SubscribeToTaskRequest(id=task.id)):
            seen.append(state_name(event.task))
            (tmp_path / "go").touch()
        await first.over

    assert (seen, first.seen[-1][0]) == (["TASK_STATE_WORKING", COMPLETED], COMPLETED)


async def test_an_answer_with_only_a_task_id_is_accepted_by_another_process(tmp_path: Path) -> None:
    asking = {**COMPOSING_PARROT, "tools": [*COMPOSING_PARROT["tools"], "tests.interfaces.server.parrot:ask"]}
    with serving(tmp_path, "--workers", "2", agent=asking) as server:
        async with connections(server) as clients:
            one, pid = await clients.client_of_other_process()
            waiting = await send_text(one, '!call ask {"question": "Red or blue?"}', "talk")
            other, _ = await clients.client_of_other_process(pid)
            answer = message_request("red", task_id=waiting.id)
            async for _event in other.send_message(answer):
                pass
            done = await one.get_task(GetTaskRequest(id=waiting.id))
        with server.http() as http:
            results = [event["content"] for event in events(http, "talk", type="tool_result")]

    assert (state_name(waiting), state_name(done), results) == (
        "TASK_STATE_INPUT_REQUIRED",
        COMPLETED,
        ["the answer is red"],
    )


async def send_more(client: Client, task: Task) -> None:
    async for _ in client.send_message(message_request("more", task)):
        pass
