"""A2A tasks that one worker process runs, reached through another."""

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

from tests.a2a.test_a2a_server import brief, message, state_of
from tests.server.process import Served, serving
from tests.server.test_a2a import AGENT, calling, said, text_of
from tests.server.test_sessions import events
from tests.support.postgres_server import on_postgres

CANCELED, COMPLETED = "TASK_STATE_CANCELED", "TASK_STATE_COMPLETED"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=on_postgres)])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """An agent served by two processes on one database."""
    database = ["--db", request.getfixturevalue("postgres_url")] if request.param == "postgres" else []
    with serving(tmp_path, "--workers", "2", *database, agent=AGENT) as served:
        yield served


def order(folder: Path, name: str = "go") -> Any:
    return message(f'!call wait_for {{"file": "{folder / name}"}}', context_id="talk")


class Watched:
    """A task at work, and what its client has been told of it."""

    def __init__(self, client: Client, request: Any) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self._known: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.over = asyncio.create_task(self._watch(client.send_message(request)))
        self.over.add_done_callback(lambda _: self._known.cancel())

    async def known(self) -> str:
        """Its id, as soon as that is told."""
        return await self._known

    async def _watch(self, told: AsyncIterator[Any]) -> None:
        async for event in told:
            if not self._known.done():
                self._known.set_result(event.task.id)
            self.seen.append(brief(event))


class Connections:
    """Clients, each with a connection to a process that is known.

    Args:
        server: The server.
        stack: Closes them.
    """

    def __init__(self, server: Served, stack: AsyncExitStack) -> None:
        self._url = server.url
        self._stack = stack

    async def beside(self, *pids: str) -> tuple[Client, str]:
        """A client of a process that is none of these, and that process's number."""
        while True:
            # Who stands still may hold what the others wait for; then it goes on for a moment.
            with suppress(TimeoutError), standing_still(pids):
                async with asyncio.timeout(2):
                    client = await self._stack.enter_async_context(calling(self._url, "none"))
                break
        return client, text_of(await said(client, "!pid"))


@contextmanager
def standing_still(pids: Sequence[str]) -> Iterator[None]:
    """While within, some processes take no connections."""
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


async def at_work(folder: Path) -> str:
    """The number of the process whose tool waits for `go`."""
    while not (told := await asyncio.to_thread(_read, folder / "go.pid")):
        await asyncio.sleep(0.01)
    return told


def _read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


async def test_cancelling_through_another_process_stops_the_run(server: Served, tmp_path: Path) -> None:
    async with connections(server) as clients:
        one, pid = await clients.beside()
        watched = Watched(one, order(tmp_path))
        ran_in = await at_work(tmp_path)
        other, _ = await clients.beside(pid)
        cancelled = await other.cancel_task(CancelTaskRequest(id=await watched.known()))
        await watched.over
        kept = [await client.get_task(GetTaskRequest(id=cancelled.id)) for client in (one, other)]
    with server.http() as http:
        status = http.get("/sessions/talk").json()["status"]
        results = [event["status"] for event in events(http, "talk", type="tool_result")]

    assert (ran_in, state_of(cancelled), [state_of(task) for task in kept], status, results) == (
        pid,
        CANCELED,
        [CANCELED] * 2,
        "ABORTED",
        ["unknown"],
    )
    assert [told for told in watched.seen if told[0] == CANCELED] == [watched.seen[-1]]


async def test_cancelling_a_task_that_waits_for_its_turn_leaves_the_one_before_it(
    server: Served, tmp_path: Path
) -> None:
    async with connections(server) as clients:
        one, pid = await clients.beside()
        first = Watched(one, order(tmp_path))
        await at_work(tmp_path)
        other, other_pid = await clients.beside(pid)
        same, _ = await clients.beside(other_pid)
        second = Watched(same, message("me too", context_id="talk"))
        cancelled = await other.cancel_task(CancelTaskRequest(id=await second.known()))
        await second.over
        (tmp_path / "go").touch()
        await first.over
    with server.http() as http:
        said_to_it = [event["content"] for event in events(http, "talk", type="user_message")]

    assert (state_of(cancelled), second.seen, first.seen[-1][0], len(said_to_it)) == (
        CANCELED,
        [("task", "TASK_STATE_SUBMITTED"), (CANCELED, "")],
        COMPLETED,
        1,
    )


async def test_a_task_of_another_process_is_watched_and_takes_no_message_here(server: Served, tmp_path: Path) -> None:
    async with connections(server) as clients:
        one, pid = await clients.beside()
        first = Watched(one, order(tmp_path))
        await at_work(tmp_path)
        other, _ = await clients.beside(pid)
        task = await other.get_task(GetTaskRequest(id=await first.known()))
        with pytest.raises(UnsupportedOperationError, match="is running"):
            await said_to(other, task)
        seen = []
        async for event in other.subscribe(SubscribeToTaskRequest(id=task.id)):
            seen.append(state_of(event.task))
            (tmp_path / "go").touch()
        await first.over

    assert (seen, first.seen[-1][0]) == (["TASK_STATE_WORKING", COMPLETED], COMPLETED)


async def test_an_answer_that_names_its_task_alone_is_taken_by_another_process(tmp_path: Path) -> None:
    asking = {**AGENT, "tools": [*AGENT["tools"], "tests.server.parrot:ask"]}
    with serving(tmp_path, "--workers", "2", agent=asking) as server:
        async with connections(server) as clients:
            one, pid = await clients.beside()
            waiting = await said(one, '!call ask {"question": "Red or blue?"}', "talk")
            other, _ = await clients.beside(pid)
            answer = message("red", task_id=waiting.id)
            async for _event in other.send_message(answer):
                pass
            done = await one.get_task(GetTaskRequest(id=waiting.id))
        with server.http() as http:
            results = [event["content"] for event in events(http, "talk", type="tool_result")]

    assert (state_of(waiting), state_of(done), results) == (
        "TASK_STATE_INPUT_REQUIRED",
        COMPLETED,
        ["the answer is red"],
    )


async def said_to(client: Client, task: Task) -> None:
    async for _ in client.send_message(message("more", task)):
        pass
