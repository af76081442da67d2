"""Following a session's events: sent as they are stored, bounded, and closed with an end event."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph.types import interrupt

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.server import host
from graph_agent.session.history import EventReader
from tests.server.hosting import answered, ask, running, sessions_of
from tests.server.process import serving
from tests.support.agents import asks, echo
from tests.support.chat_client import chat

KINDS = ["user_message", "status", "plan", "agent_response", "status"]


@contextmanager
def followed(http: httpx.Client, session: str, **params: Any) -> Iterator[Iterator[dict[str, Any]]]:
    path = f"/memory/sessions/{session}/events"
    with http.stream("GET", path, params={"follow": True, **params}) as stream:
        yield (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))


async def test_events_of_this_process_are_followed_without_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "LOOK_S", 3600.0)
    async with asyncio.timeout(30), running(create_graph_agent(ScriptedChatModel(["one", "two"]))) as runs:
        await answered(runs.host, ask(session_id="s"))
        received: list[str] = []
        async with aclosing(await sessions_of(runs).follow("s", ["agent_response"], -1, 3600)) as frames:
            received.append(await anext(frames))
            second = asyncio.create_task(answered(runs.host, ask(session_id="s")))
            received.append(await anext(frames))
            await second
            runs.drain()
            received += [frame async for frame in frames]

    heads = [frame.partition("\n")[0] for frame in received]
    assert (heads, json.loads(received[-1].partition("data: ")[2])) == (
        ["event: agent_response", "event: agent_response", "event: end"],
        {"type": "end", "reason": "server_stopping", "after": 7},
    )


async def test_a_session_deleted_before_the_first_poll_is_reported_gone() -> None:
    async with asyncio.timeout(30), running(create_graph_agent(ScriptedChatModel(["one"]))) as runs:
        await answered(runs.host, ask(session_id="s"))
        sessions = sessions_of(runs)
        frames = await sessions.follow("s", [], -1, 3600)
        await sessions.delete("s")
        received = [frame async for frame in frames]

    assert received == ['event: end\ndata: {"type":"end","reason":"deleted","after":-1}\n\n']


def test_a_stopping_server_notifies_its_followers(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.http() as http:
        chat(http, "s", "one")
        with followed(http, "s") as events:
            seen = [next(events) for _ in KINDS]
            server.term()
            rest = list(events)

    assert ([event["type"] for event in seen], rest) == (
        KINDS,
        [{"type": "end", "reason": "server_stopping", "after": 4}],
    )


def test_a_session_that_is_deleted_ends_the_stream(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.http() as http:
        chat(http, "s", "one")
        with followed(http, "s", after=3) as events:
            seen = next(events)["seq"]
            http.delete("/sessions/s")
            rest = list(events)

    assert (seen, rest) == (4, [{"type": "end", "reason": "deleted", "after": 4}])


def test_checkpoints_of_another_process_are_followed(tmp_path: Path) -> None:
    with serving(tmp_path) as one, serving(tmp_path) as two, one.http() as http, two.http() as other:
        chat(http, "s", "one")
        with followed(http, "s", after=4, type="agent_response") as events:
            chat(other, "s", "two")
            seen = next(events)

    assert (seen["seq"], seen["content"]) == (8, "You said: one / two")


def test_followed_streams_are_bounded_per_key(tmp_path: Path) -> None:
    with serving(tmp_path, "--set", "event_streams=1") as server, server.http() as http:
        chat(http, "s", "one")
        with followed(http, "s") as events:
            next(events)
            refused = http.get("/memory/sessions/s/events", params={"follow": True})
            whole = http.get("/memory/sessions/s/events")
        while _is_refused(http):
            time.sleep(0.01)

    assert (refused.status_code, refused.json()["kind"], whole.status_code) == (429, "busy", 200)


def _is_refused(http: httpx.Client) -> bool:
    with http.stream("GET", "/memory/sessions/s/events", params={"follow": True}) as stream:
        return stream.status_code == 429


async def test_many_followers_read_a_session_once_per_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "LOOK_S", 3600.0)
    readings: list[str] = []
    read, read_all = EventReader.read, EventReader.read_all

    async def counted_read(reader: EventReader) -> Any:
        new = await read(reader)
        readings.extend(["read"] if new else [])
        return new

    async def counted_read_all(reader: EventReader) -> Any:
        readings.append("read_all")
        return await read_all(reader)

    monkeypatch.setattr(EventReader, "read", counted_read)
    monkeypatch.setattr(EventReader, "read_all", counted_read_all)
    async with asyncio.timeout(60), running(create_graph_agent(ScriptedChatModel(["one", "two"]))) as runs:
        await answered(runs.host, ask(session_id="s"))
        sessions = sessions_of(runs)
        streams = [await sessions.follow("s", [], -1, 3600) for _ in range(64)]
        first = await asyncio.gather(*(_until_answer(stream) for stream in streams))
        before = list(readings)
        answering = asyncio.create_task(answered(runs.host, ask(session_id="s")))
        second = await asyncio.gather(*(_until_answer(stream) for stream in streams))
        await answering
        for stream in streams:
            await stream.aclose()

    assert (len({str(one) for one in first}), len({str(one) for one in second})) == (1, 1)
    assert (before, "read_all" in readings[len(before) :]) == (["read"], False)


async def _until_answer(stream: Any) -> list[str]:
    frames = []
    async for frame in stream:
        frames.append(frame)
        if frame.startswith("event: agent_response"):
            return frames
    raise AssertionError("the stream ended")


async def test_a_late_follower_gets_the_whole_history() -> None:
    async with asyncio.timeout(60), running(create_graph_agent(ScriptedChatModel(["one", "two"]))) as runs:
        await answered(runs.host, ask(session_id="s"))
        sessions = sessions_of(runs)
        early = await sessions.follow("s", [], -1, 3600)
        seen = [await anext(early) for _ in KINDS[:4]]
        late = await sessions.follow("s", [], -1, 3600)
        seen_late = [await anext(late) for _ in KINDS[:4]]
        for stream in (early, late):
            await stream.aclose()
    assert seen_late == seen


async def test_the_end_of_a_call_is_live_while_another_of_its_wave_waits() -> None:
    def question(text: str) -> str:
        """Ask a person."""
        return str(interrupt(text))

    wave = asks(("a", "question", {"text": "Which?"}), ("b", "echo", {"text": "x"}))
    agent = create_graph_agent(ScriptedChatModel([wave, "Done."]), tools=[question, echo])
    async with asyncio.timeout(30), running(agent) as runs:
        await answered(runs.host, ask(session_id="s"))
        sessions = sessions_of(runs)
        listed, position = await sessions.events_to_follow("s", [], -1)
        async with aclosing(await sessions.follow("s", ["tool_result"], position, 3600, live=True)) as frames:
            ended = json.loads((await anext(frames)).partition("data: ")[2])
            await sessions.resume("s", "This one.")
            following = [json.loads(frame.partition("data: ")[2]) async for frame in _until_result(frames, "b")]

    assert ended["parts"] == [{"type": "call", "id": "b", "status": "success", "ts": listed[-1]["ts"]}]
    assert [(each["seq"], each["id"]) for each in listed[position:]] == [(4, "b"), (5, "b")]
    assert [(each["seq"], each["id"]) for each in following if each["type"] != "live"] == [(5, "a"), (6, "b")]


async def _until_result(frames: AsyncIterator[str], id_: str) -> AsyncIterator[str]:
    async for frame in frames:
        yield frame
        if frame.startswith("event: tool_result") and f'"id":"{id_}"' in frame:
            return
