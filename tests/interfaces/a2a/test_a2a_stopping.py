"""Running A2A tasks when `graph-agent a2a` or `graph-agent serve` is stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from a2a.types import GetTaskRequest, StreamResponse

from graph_agent import SessionMemory
from graph_agent.interfaces.server.a2a.executor import STOPPED_TEXT
from graph_agent.persistence import open_saver
from graph_agent.spec import load_spec, open_agent
from tests.interfaces.server.process import serving
from tests.support.a2a_client import a2a_client, artifact_texts, event_summary, message_request, send, state_name
from tests.support.a2a_process import AGENT, a2a_process


def order(folder: Path) -> Any:
    text = f'!call wait_for {{"file": "{folder / "go"}"}}\n!then look_up {{"key": "k"}}'
    return message_request(text, context_id="talk")


async def until_working(events: AsyncIterator[StreamResponse], folder: Path) -> str:
    """The id of a task, once its first tool runs."""
    async for event in events:
        if "wait_for: started" in str(event):
            while not await asyncio.to_thread((folder / "go.pid").exists):
                await asyncio.sleep(0.01)
            return event.status_update.task_id
    raise AssertionError("the task ended")


@asynccontextmanager
async def server(surface: str, folder: Path, *options: str) -> AsyncIterator[tuple[str, Any]]:
    """The agent, served by either command; yield its address and its process.

    Args:
        options: Of the command `a2a`.
    """
    database = f"sqlite:///{folder / 'sessions.db'}"
    if surface == "a2a":
        with a2a_process(folder, "--db", database, *options) as (url, process):
            yield url, process
    else:
        with serving(folder, agent=AGENT) as served:
            yield served.url, served.process


@pytest.mark.parametrize("surface", ["a2a", "serve"])
async def test_sigterm_stops_a_task_at_its_next_boundary(surface: str, tmp_path: Path) -> None:
    async with server(surface, tmp_path) as (url, process), a2a_client(url) as client:
        stream: Any = client.send_message(order(tmp_path))
        async with aclosing(stream) as events:
            cut = await until_working(events, tmp_path)
            process.send_signal(signal.SIGTERM)
            (tmp_path / "go").touch()
            received = [event_summary(event) async for event in events]
        status = await asyncio.to_thread(process.wait, 60)
    async with server(surface, tmp_path) as (url, _), a2a_client(url, streaming=False) as client:
        kept = await client.get_task(GetTaskRequest(id=cut))
        after = await send(client, message_request("and now?", context_id="talk"))
    results = await tool_results(tmp_path)

    assert (received[-1], status, state_name(kept), state_name(after)) == (
        ("TASK_STATE_FAILED", STOPPED_TEXT),
        0,
        "TASK_STATE_FAILED",
        "TASK_STATE_COMPLETED",
    )
    # The finished call keeps its result, and the next wave did not start.
    assert (results, "and now?" in artifact_texts(after)[0]) == ([("wait_for", "success")], True)


async def tool_results(folder: Path) -> list[tuple[str, str]]:
    """The tools' results in the conversation's history."""
    async with (
        open_agent(load_spec(folder / "agent.yaml"), db="") as agent,
        open_saver(f"sqlite:///{folder / 'sessions.db'}") as saver,
    ):
        graph: Any = agent.builder.compile(checkpointer=saver)
        found = await SessionMemory(graph).get_session_events("talk")
    return [(event["name"], event["status"]) for event in found if event["type"] == "tool_result"]


async def test_sigterm_stops_an_unwatched_task_at_its_next_boundary(tmp_path: Path) -> None:
    async with server("a2a", tmp_path) as (url, process):
        async with a2a_client(url) as client:
            stream: Any = client.send_message(order(tmp_path))
            async with aclosing(stream) as events:
                cut = await until_working(events, tmp_path)
        process.send_signal(signal.SIGTERM)
        (tmp_path / "go").touch()
        status = await asyncio.to_thread(process.wait, 60)
    async with server("a2a", tmp_path) as (url, _), a2a_client(url) as client:
        kept = await client.get_task(GetTaskRequest(id=cut))

    reason = "".join(part.text for part in kept.status.message.parts)
    assert (status, state_name(kept), reason) == (0, "TASK_STATE_FAILED", STOPPED_TEXT)


async def test_a_second_sigterm_stops_a_task_at_once(tmp_path: Path) -> None:
    async with server("a2a", tmp_path, "--drain-s", "3600") as (url, process), a2a_client(url) as client:
        stream: Any = client.send_message(order(tmp_path))
        async with aclosing(stream) as events:
            await until_working(events, tmp_path)
            process.send_signal(signal.SIGTERM)
            await refused(url)
            process.send_signal(signal.SIGTERM)
            status = await asyncio.to_thread(process.wait, 60)

    assert (status, (tmp_path / "go").exists()) == (0, False)


async def refused(url: str) -> None:
    """Wait until a server accepts no connections."""
    _, _, address = url.partition("://")
    host, _, port = address.partition(":")
    while True:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            return
        writer.close()
        await asyncio.sleep(0.01)
