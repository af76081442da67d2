"""The FastAPI recipe, served by uvicorn and asked over HTTP as a browser would."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import httpx
import pytest
from sse_starlette import EventSourceResponse

from examples.fastapi_chat import app as recipe
from graph_agent import ScriptedChatModel, SessionMemory
from tests.support.a2a_servers import serving
from tests.support.agents import asks
from tests.support.doc_pages import ROOT, read_blocks
from tests.support.gates import Gate, GatedModel, nothing_under_way, until
from tests.support.warm_process import warm_python

BOOK = json.dumps({"tool_calls": [{"name": "book", "arguments": {"room": "Oak", "day": "2026-12-01"}}]})
Serve = Callable[[ScriptedChatModel], AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Serve the recipe with a scripted model; yield a client with Ada's token."""

    @asynccontextmanager
    async def serve(model: ScriptedChatModel) -> AsyncIterator[httpx.AsyncClient]:
        monkeypatch.setenv("CHAT_DB", f"sqlite:///{tmp_path}/chat.db")
        monkeypatch.setattr(recipe, "MODEL", model)
        with serving(lambda _: recipe.app) as url:
            headers = {"Authorization": "Bearer token-of-ada"}
            async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
                yield client

    return serve


async def send(client: httpx.AsyncClient, text: str, id_: str = "m1") -> httpx.Response:
    return await client.post("/chats/c1/messages", json={"id": id_, "text": text})


def events(response: httpx.Response) -> list[tuple[str, Any]]:
    """Return the name and data of each event of a stream; the text of adjacent tokens is joined."""
    assert response.status_code == 200, response.text
    found: list[tuple[str, Any]] = []
    for block in response.text.replace("\r\n", "\n").strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        data = json.loads(fields["data"]) if fields else {}
        if fields and found and fields["event"] == found[-1][0] == "token":
            found[-1][1]["text"] += data["text"]
        elif fields:
            found.append((fields["event"], data))
    return found


def done(answer: str) -> tuple[str, Any]:
    return "done", {"status": "COMPLETED", "waiting": None, "answer": answer}


async def test_a_call_waits_for_the_user_and_runs_when_approved(serve: Serve) -> None:
    async with serve(ScriptedChatModel([BOOK, "Oak is yours."])) as ada:
        asked = events(await send(ada, "Book Oak for tomorrow."))
        questions = (await ada.get("/chats/c1/questions")).json()
        answered = events(await ada.post("/chats/c1/decisions", json={"id": "d1", "approved": True}))

    assert (asked[-1], questions, [name for name, _ in answered], answered[-1]) == (
        ("done", {"status": "RUNNING", "waiting": "approval", "answer": ""}),
        [{"name": "book", "args": {"room": "Oak", "day": "2026-12-01"}}],
        ["call", "call", "token", "done"],
        done("Oak is yours."),
    )


async def test_a_chat_that_is_opened_again_shows_its_calls(serve: Serve) -> None:
    other = asks(("2", "book", {"room": "Elm", "day": "2026-12-01"}))
    async with serve(ScriptedChatModel([BOOK, "Oak is yours.", other, "I booked nothing."])) as ada:
        await send(ada, "Book Oak for tomorrow.")
        await ada.post("/chats/c1/decisions", json={"id": "d1", "approved": True})
        await send(ada, "Book Elm, too.", "m2")
        await ada.post("/chats/c1/decisions", json={"id": "d2", "approved": False, "reason": "One is enough."})
    async with serve(ScriptedChatModel([])) as ada:
        shown = (await ada.get("/chats/c1/messages")).json()
        chats = [(await ada.get("/chats")).json()]
        chats.append((await ada.get("/chats", headers={"Authorization": "Bearer token-of-ben"})).json())

    call = {"role": "call", "name": "book", "arguments": {"room": "Oak", "day": "2026-12-01"}}
    assert shown == [
        {"role": "user", "content": "Book Oak for tomorrow."},
        {**call, "status": "success", "result": "Booked Oak for 2026-12-01."},
        {"role": "agent", "content": "Oak is yours."},
        {"role": "user", "content": "Book Elm, too."},
        {**call, "arguments": {"room": "Elm", "day": "2026-12-01"}, "status": "denied", "result": ANY},
        {"role": "agent", "content": "I booked nothing."},
    ]
    assert (chats, "One is enough." in shown[4]["result"]) == ([["c1"], []], True)


async def test_a_rejected_call_does_not_run(serve: Serve) -> None:
    async with serve(ScriptedChatModel([BOOK, "I booked nothing."])) as ada:
        await send(ada, "Book Oak for tomorrow.")
        answered = events(
            await ada.post("/chats/c1/decisions", json={"id": "d1", "approved": False, "reason": "Too early."})
        )

    statuses = [data["status"] for name, data in answered if name == "call"]
    assert (statuses[-1:], answered[-1]) == (["denied"], done("I booked nothing."))


async def test_a_message_that_is_sent_again_asks_the_model_once(serve: Serve) -> None:
    model = ScriptedChatModel(["Hello, Ada."])
    async with serve(model) as ada:
        sent = [events(await send(ada, "Hello!")), events(await send(ada, "Hello!"))]

    assert (sent, len(model.requests)) == ([[("token", {"text": "Hello, Ada."}), done("Hello, Ada.")]] * 2, 1)


async def test_a_second_message_is_refused_while_an_answer_streams(serve: Serve) -> None:
    gate = Gate()
    async with serve(GatedModel(["Hello, Ada."], within={1: gate})) as ada:
        first = asyncio.create_task(send(ada, "Hello!"))
        await gate.reached()
        second = await ada.post("/chats/c1/messages", json={"id": "m2", "text": "Are you there?"})
        gate.open()
        answered = events(await first)

    assert (second.status_code, answered[-1]) == (409, done("Hello, Ada."))


async def leave(client: httpx.AsyncClient, gate: Gate) -> None:
    """Send a message, and close the connection in the middle of its answer."""
    message = {"id": "m1", "text": "Hello!"}
    async with client.stream("POST", "/chats/c1/messages", json=message) as response:
        await anext(response.aiter_bytes())
        await gate.reached()


async def test_a_run_goes_on_when_the_tab_is_closed_and_the_same_message_gets_its_answer(serve: Serve) -> None:
    gate, model = Gate(), GatedModel(["Hello, Ada."])
    model.within[1] = gate
    async with serve(model) as ada:
        await leave(ada, gate)
        again = asyncio.create_task(send(ada, "Hello!"))
        seen = (await ada.get("/chats/c1/messages")).json()
        gate.open()
        answered = events(await again)
        shown = (await ada.get("/chats/c1/messages")).json()

    assert (gate.cancelled, len(model.requests), seen) == (False, 1, [{"role": "user", "content": "Hello!"}])
    assert (answered, shown[1:]) == (
        [("token", {"text": "Hello, Ada."}), done("Hello, Ada.")],
        [{"role": "agent", "content": "Hello, Ada."}],
    )


async def test_a_closed_tab_ends_its_run_without_another_request(serve: Serve) -> None:
    gate = Gate()
    async with serve(GatedModel(["Hello, Ada."], within={1: gate})) as ada:
        await leave(ada, gate)
        gate.open()
        await until(nothing_under_way)
        shown = (await ada.get("/chats/c1/messages")).json()

    assert shown[-1] == {"role": "agent", "content": "Hello, Ada."}


async def test_a_variant_ends_the_run_when_the_tab_is_closed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()

    def ends_with_its_browser(events: Any) -> EventSourceResponse:
        session = recipe.app.state.agent.session("ada/c1")
        return EventSourceResponse(events, client_close_handler_callable=lambda _: session.abort())

    monkeypatch.setattr(recipe, "EventSourceResponse", ends_with_its_browser)
    async with serve(GatedModel(["Hello, Ada."], within={1: gate})) as ada:
        await leave(ada, gate)
        await until(nothing_under_way)
        sessions = await SessionMemory(recipe.app.state.agent).list_sessions(status="aborted")

    assert (gate.cancelled, sessions) == (True, ["ada/c1"])


async def test_only_a_run_whose_process_ended_is_resumed_at_the_next_start(serve: Serve) -> None:
    gate, next_gate = Gate(), Gate()
    async with serve(GatedModel(["Hello, Ada."], within={1: gate})) as ada:
        await leave(ada, gate)
    async with serve(GatedModel(["Hello again."], before={1: next_gate})) as ada:
        await next_gate.reached()
        stopped = (await ada.post("/chats/c1/stop")).json()
        await until(nothing_under_way)
    model = ScriptedChatModel([])
    async with serve(model) as ada:
        sessions = await SessionMemory(recipe.app.state.agent).list_sessions(status="aborted")
        await until(nothing_under_way)
        shown = (await ada.get("/chats/c1/messages")).json()

    assert (gate.cancelled, next_gate.cancelled, stopped, sessions) == (True, True, {"stopped": True}, ["ada/c1"])
    assert ([each["role"] for each in shown], len(model.requests)) == (["user", "agent"], 0)


async def test_the_chat_of_another_user_cannot_be_reached(serve: Serve) -> None:
    async with serve(ScriptedChatModel([BOOK])) as ada:
        await send(ada, "Book Oak for tomorrow.")
        seen = {
            name: await ada.get("/chats/c1/questions", headers={"Authorization": name})
            for name in ("Bearer token-of-ben", "Bearer of-nobody")
        }

    assert {name: (response.status_code, response.json()) for name, response in seen.items()} == {
        "Bearer token-of-ben": (200, []),
        "Bearer of-nobody": (401, {"detail": "Log in first."}),
    }


async def test_a_decision_without_a_question_is_refused(serve: Serve) -> None:
    async with serve(ScriptedChatModel(["Hello."])) as ada:
        refused = await ada.post("/chats/c1/decisions", json={"id": "d1", "approved": True})

    assert refused.status_code == 422


async def test_a_decision_that_is_sent_again_is_used_once_and_a_second_one_is_refused(serve: Serve) -> None:
    async with serve(ScriptedChatModel([BOOK, "Oak is yours."])) as ada:
        await send(ada, "Book Oak for tomorrow.")
        first, repeated, second = [
            await ada.post("/chats/c1/decisions", json={"id": each, "approved": True}) for each in ("d1", "d1", "d2")
        ]

    assert (events(first)[-1], events(repeated)[-1]) == (done("Oak is yours."),) * 2
    assert (second.status_code, "already decided" in second.text) == (422, True)


async def test_a_run_that_a_crash_cut_off_is_resumed_when_the_application_starts(serve: Serve, tmp_path: Path) -> None:
    arguments = ["-m", "tests.support.killed_booking", str(tmp_path / "chat.db")]
    process = await asyncio.create_subprocess_exec(warm_python(), *arguments)
    assert await process.wait() == -signal.SIGKILL

    async with serve(ScriptedChatModel(["Please check whether Oak is booked."])) as ada:
        async with asyncio.timeout(120):
            while len(found := (await ada.get("/chats/c1/messages")).json()) < 3:
                await asyncio.sleep(0.01)

    call = {"role": "call", "name": "book", "arguments": {"room": "Oak", "day": "2026-12-01"}}
    assert found == [
        {"role": "user", "content": "Book Oak for tomorrow."},
        {**call, "status": "unknown", "result": ANY},
        {"role": "agent", "content": "Please check whether Oak is booked."},
    ]


def test_the_page_shows_the_code() -> None:
    shown = [block.text for block in read_blocks(ROOT / "docs/recipes/fastapi.md")[:2]]

    files = [ROOT / "examples/fastapi_chat" / name for name in ("app.py", "index.html")]
    assert shown == [file.read_text(encoding="utf-8") for file in files]
