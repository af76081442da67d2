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

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.interfaces.server import feeds
from graph_agent.persistence import open_saver
from graph_agent.session.history import EventReader
from tests.interfaces.server.hosting import answered, ask, outcome_of, running, sessions_of, spec_of
from tests.interfaces.server.process import serving
from tests.support.agents import asks, echo
from tests.support.chat_client import chat
from tests.support.gates import HeldModel
from tests.support.hooks import Passing

KINDS = ["user_message", "status", "plan", "agent_response", "status"]


@contextmanager
def followed(http: httpx.Client, session: str, **params: Any) -> Iterator[Iterator[dict[str, Any]]]:
    path = f"/memory/sessions/{session}/events"
    with http.stream("GET", path, params={"follow": True, **params}) as stream:
        yield (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))


async def test_events_of_this_process_are_followed_without_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "LOOK_S", 3600.0)
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


async def until(frames: AsyncIterator[str], event: str) -> list[dict[str, Any]]:
    """The data up to the first event of a type."""
    found = []
    async for frame in frames:
        if "data: " in frame:
            found.append(json.loads(frame.partition("data: ")[2]))
        if frame.startswith(f"event: {event}\n"):
            return found
    raise AssertionError("the stream ended")


def places(data: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(each["seq"], each["type"]) for each in data if each["type"] != "live"]


@pytest.mark.parametrize("number", [1, 2], ids=["first input", "second input"])
@pytest.mark.parametrize("live", [True, False], ids=["live", "stored"])
@pytest.mark.parametrize("tools", [[echo], []], ids=["tools", "no tools"])
async def test_an_input_is_followed_while_its_first_model_call_runs(number: int, live: bool, tools: Any) -> None:
    model = HeldModel(responses=["One.", "Two."], go=asyncio.Event())
    kinds = KINDS if tools else [each for each in KINDS if each != "plan"]
    async with asyncio.timeout(30), running(create_graph_agent(model, tools=tools)) as runs:
        sessions, before = sessions_of(runs), len(kinds) * (number - 1)
        if number == 2:
            model.go.set()
            await answered(runs.host, ask(session_id="s"))
            model.go.clear()
        run = asyncio.create_task(answered(runs.host, ask(session_id="s")))
        while not await sessions.ids(None, None):
            await asyncio.sleep(0.01)
        late_after = before - 1
        streams = [await sessions.follow("s", [], after, 3600, live=live) for after in (late_after, late_after, -1)]
        begun = [await until(stream, "status") for stream in streams[:2]]
        model.go.set()
        rest = [await until(stream, "agent_response") for stream in streams[:2]]
        whole = await until(streams[2], "agent_response") if number == 1 else []
        await run
        for stream in streams:
            await stream.aclose()

    assert [places(data) for data in begun] == [[(before, "user_message"), (before + 1, "status")]] * 2
    assert [places(data) for data in rest] == [
        [(at, kinds[at - before]) for at in range(before + 2, before + len(kinds) - 1)]
    ] * 2
    assert places(whole) == ([(at, kind) for at, kind in enumerate(kinds[:-1])] if number == 1 else [])


@pytest.mark.parametrize(
    "options",
    [{"tools": [echo]}, {}, {"tools": [echo], "hooks": [Passing()]}],
    ids=["tools", "no tools", "hooks"],
)
async def test_a_follow_up_and_each_input_are_followed_before_the_text_of_their_answers(options: Any) -> None:
    agent = create_graph_agent(ScriptedChatModel(["One.", "Two.", "Three."]), **options)
    async with asyncio.timeout(30), running(agent) as runs:
        await answered(runs.host, ask(session_id="s"))
        sessions = sessions_of(runs)
        await (await sessions.session("s")).follow_up("And then?")
        async with aclosing(
            await sessions.follow("s", ["user_message", "agent_response"], 1, 3600, live=True)
        ) as frames:
            await until(frames, "agent_response")
            run = asyncio.create_task(_with_follow_ups(runs))
            seen = [*await until(frames, "agent_response"), *await until(frames, "agent_response")]
            await run

    parts = [part for each in seen for part in each.get("parts", [each])]
    kinds = ["user_message", "text", "agent_response"]
    assert [part["type"] for part in parts if part["type"] in kinds] == kinds * 2


async def _with_follow_ups(runs: Any) -> None:
    """Run an input, and then the follow-ups of its session in the background."""
    async with runs.run(await spec_of(runs.host, ask(session_id="s")), streams=False) as run:
        await outcome_of(run)


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


@pytest.mark.parametrize("live", [True, False], ids=["live", "stored"])
async def test_an_input_of_another_process_is_followed_while_its_first_model_call_runs(
    tmp_path: Path, live: bool
) -> None:
    model = HeldModel(responses=["Two."], go=asyncio.Event())
    with serving(tmp_path) as served:
        async with asyncio.timeout(60), open_saver(f"sqlite:///{tmp_path / 'sessions.db'}") as saver:
            with served.http() as http:
                await asyncio.to_thread(chat, http, "s", "one")
            run = asyncio.create_task(
                Session(create_graph_agent(model, tools=[echo], checkpointer=saver), "s").run("two")
            )
            path, params = "/memory/sessions/s/events", {"follow": "true", "live": str(live), "after": "4"}
            async with (
                httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=60) as client,
                client.stream("GET", path, params=params) as stream,
            ):
                lines = (line async for line in stream.aiter_lines() if line.startswith("data: "))
                seen = [json.loads((await anext(lines))[6:]) for _ in range(2)]
                model.go.set()
                seen += [json.loads((await anext(lines))[6:]) for _ in range(2)]
            await run

    assert [(each["seq"], each["type"]) for each in seen] == list(enumerate(KINDS[:4], 5))


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
    monkeypatch.setattr(feeds, "LOOK_S", 3600.0)
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
