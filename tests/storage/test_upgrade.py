"""Databases of versions 0.1.0 and 0.2.0 open in this version; those of a newer version are refused."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from graph_agent import ScriptedChatModel, Session, SessionMemory, create_graph_agent
from graph_agent.errors import NewerFormatError
from graph_agent.persistence import open_saver, open_store, prune
from graph_agent.session.history import EventReader, summarize_sessions
from graph_agent.storage.checkpoints import format as checkpoint_format
from graph_agent.storage.checkpoints.open import open_reader
from tests.fixtures.v0_1_0 import make
from tests.fixtures.v0_1_0.make import agent, calls
from tests.fixtures.v0_2_0.make import HINT, Hinted, careful
from tests.interfaces.server.process import serving
from tests.support.agents import thread
from tests.support.chat_client import chat
from tests.support.postgres_server import on_postgres

pytestmark = pytest.mark.sampled(2)  # one kind of database for each test, in turn

_FIXTURES = Path(make.__file__).parents[1]
ADDED = ("configured", "hooked", "held")
"""Sessions that only the database of version 0.2.0 has."""
UNKNOWN = (
    "The run was interrupted before this call's result was recorded. It is not known whether the call ran or took "
    "effect; check before repeating it."
)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=on_postgres)])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of the database."""
    return str(request.param)


def copied(version: str, kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """Return the address of a copy of a version's database."""
    if kind == "sqlite":
        shutil.copy(_FIXTURES / version / "sessions.sqlite", folder / "s.db")
        return f"sqlite:///{folder / 's.db'}"
    url: str = request.getfixturevalue("postgres_url")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute((_FIXTURES / version / "sessions.sql").read_bytes())
    return url


@pytest.fixture(params=["v0_1_0", "v0_2_0"])
def database(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database with the sessions that both versions wrote."""
    return copied(request.param, kind, request, tmp_path)


@pytest.fixture
def newer_database(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database of version 0.2.0."""
    return copied("v0_2_0", kind, request, tmp_path)


async def test_sessions_of_an_earlier_version_are_listed_and_read(database: str) -> None:
    async with open_saver(database) as saver, open_store(database) as store:
        memory = SessionMemory(agent([], saver, store))
        listed = [name for name in await memory.list_sessions() if name not in ADDED]
        histories = {name: [e["type"] for e in await memory.get_session_events(name)] for name in ("talk", "limited")}
        summaries = await summarize_sessions(saver, _never_running)

    began, ended = ["user_message", "status", "plan"], ["agent_response", "status"]
    assert (listed, histories, [(s.id, s.activity, s.title) for s in summaries if s.id not in ADDED]) == (
        ["killed", "noted", "waiting", "limited", "delegated", "talk"],
        {
            "talk": [*began, *ended, *began, "tool_call", "tool_result", "plan", *ended],
            "limited": [*began, "tool_call", "tool_result", "limit", *ended],
        },
        [
            ("killed", "interrupted", "Charge 7 and 13."),
            ("noted", "idle", "Go."),
            ("waiting", "waiting", "Ask me."),
            ("limited", "idle", "Add without end."),
            ("delegated", "idle", "Find it."),
            ("talk", "idle", "I am Ada."),
        ],
    )


async def test_sessions_of_an_earlier_version_take_new_input(database: str) -> None:
    async with open_saver(database) as saver, open_store(database) as store:
        graph = agent([calls(("t2", "add", {"a": 4, "b": 5})), "It is 9.", "Found before.", "Once more."], saver, store)
        results = [await Session(graph, name).run("And now?") for name in ("talk", "delegated", "limited")]
        inputs = [m.text for m in (await graph.aget_state(thread("talk"))).values["messages"] if m.type == "human"]

    assert ([(each.answer, each.status.value) for each in results], inputs) == (
        [("It is 9.", "COMPLETED"), ("Found before.", "COMPLETED"), ("Once more.", "COMPLETED")],
        ["I am Ada.", "What is 2 + 3?", "And now?"],
    )


async def test_an_open_question_of_an_earlier_version_is_answered(database: str) -> None:
    async with open_saver(database) as saver, open_store(database) as store:
        session = Session(agent(["You agreed."], saver, store), "waiting")
        asked = [each.value for each in await session.interrupts()]
        result = await session.resume("yes")

    assert (asked, result.answer, result.results) == (["May I?"], "You agreed.", {"w1": "yes"})


async def test_a_killed_wave_of_an_earlier_version_is_settled(database: str) -> None:
    async with open_saver(database) as saver, open_store(database) as store:
        result = await Session(agent(["7 is charged."], saver, store), "killed").resume()

    assert (result.answer, result.results) == ("7 is charged.", {"k1": "charged 7", "k2": {"error": UNKNOWN}})


async def test_a_note_of_an_earlier_version_is_delivered(database: str) -> None:
    async with open_saver(database) as saver, open_store(database) as store:
        session = Session(agent(["Brief."], saver, store), "noted")
        await session.run("Go on.")
        steered = [event["content"] for event in await session.events() if event["type"] == "steering"]

    assert steered == ["Be brief."]


async def test_an_approval_of_an_earlier_version_is_decided(newer_database: str) -> None:
    async with open_saver(newer_database) as saver, open_store(newer_database) as store:
        session = Session(careful(ScriptedChatModel(["Charged."]), saver, store), "held")
        asked = [each.value["action_requests"][0]["name"] for each in await session.interrupts()]
        result = await session.resume("approve")

    assert (asked, result.answer, result.results) == (["charge"], "Charged.", {"h1": 2, "h2": "charged 7"})


async def test_a_message_that_a_hook_added_in_an_earlier_version_stays_in_requests(newer_database: str) -> None:
    model = ScriptedChatModel(["You agreed."])
    async with open_saver(newer_database) as saver, open_store(newer_database) as store:
        result = await Session(careful(model, saver, store, hooks=[Hinted()]), "hooked").resume("yes")

    hints = [message.text for message in model.requests[0].messages if message.text == HINT]
    assert (result.answer, hints) == ("You agreed.", [HINT])


async def test_a_changed_configuration_of_an_earlier_version_holds(newer_database: str) -> None:
    question = calls(("q2", "ask", {"question": "And now?"}))
    async with open_saver(newer_database) as saver, open_store(newer_database) as store:
        session = Session(careful(ScriptedChatModel([question, question, "Stopped."]), saver, store), "configured")
        results = [await session.resume("yes") for _ in range(3)]

    assert [each.stop_reason for each in results] == [None, None, "step_limit"]


@asynccontextmanager
async def _saver(kind: str, folder: Path) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    async with AsyncExitStack() as stack:
        if kind == "memory":
            yield InMemorySaver()
        elif kind == "langgraph":
            yield await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(str(folder / "s.db")))
        else:
            yield await stack.enter_async_context(open_saver(f"sqlite:///{folder / 's.db'}"))


def _talker(saver: BaseCheckpointSaver[Any], *script: str) -> Any:
    return create_graph_agent(ScriptedChatModel(list(script)), checkpointer=saver)


@pytest.mark.parametrize("kind", ["memory", "langgraph", "own"])
async def test_a_session_of_a_newer_version_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    async with _saver(kind, tmp_path) as saver:
        monkeypatch.setattr(checkpoint_format, "FORMAT", 4)
        await Session(_talker(saver, "Hello."), "s1").run("Hi.")
        monkeypatch.setattr(checkpoint_format, "FORMAT", 3)
        graph = _talker(saver)
        session = Session(graph, "s1")
        history = anext(graph.aget_state_history(thread("s1")))
        reading = [session.events(), graph.aget_state(thread("s1")), history]
        for attempt in (session.run("More."), session.resume(), *reading):
            with pytest.raises(NewerFormatError) as error:
                await attempt
            refused.append(str(error.value))
        monkeypatch.setattr(checkpoint_format, "FORMAT", 4)
        kept = [m.text for m in (await graph.aget_state(thread("s1"))).values["messages"]]

    text = (
        "Session 's1' was stored by a newer version of graph-agent: its checkpoints have format 4, and this version "
        "reads formats up to 3. Upgrade this process."
    )
    assert (refused, kept) == ([text] * 5, ["Hi.", "Hello."])


async def _store_newer(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_saver(url) as saver:
        await Session(_talker(saver, "Before."), "older").run("Hi.")
        monkeypatch.setattr(checkpoint_format, "FORMAT", 4)
        await Session(_talker(saver, "Hello."), "newer").run("Hi.")
        monkeypatch.setattr(checkpoint_format, "FORMAT", 3)


async def test_a_list_of_sessions_names_those_of_a_newer_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 's.db'}"
    await _store_newer(url, monkeypatch)
    async with open_reader(url) as reader:
        with pytest.raises(NewerFormatError):
            await EventReader(None, reader, "newer").read()
        summaries = [await summarize_sessions(reader, _never_running)]
    async with open_saver(url) as saver:
        summaries.append(await summarize_sessions(saver, _never_running))

    expected = [("newer", "newer"), ("older", "idle")]
    assert [[(each.id, each.activity) for each in found] for found in summaries] == [expected] * 2


async def test_a_server_sends_clients_of_a_newer_session_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _store_newer(f"sqlite:///{tmp_path / 'sessions.db'}", monkeypatch)
    with serving(tmp_path) as server, server.http() as http:
        refused = [
            chat(http, "newer", "More."),
            http.get("/sessions/newer"),
            http.post("/sessions/newer/steer", json={"text": "Be brief."}),
        ]
        answered = chat(http, "older", "More.")
        listed = [each["id"] for each in http.get("/sessions").json()["sessions"]]

    assert ([(each.status_code, each.headers["retry-after"]) for each in refused], answered.status_code, listed) == (
        [(503, "1")] * 3,
        200,
        ["older"],
    )


async def _never_running(session_id: str) -> bool:
    return False


@pytest.fixture
def pruned_database(tmp_path: Path) -> str:
    """The address of a database that the first form of pruning trimmed."""
    shutil.copy(_FIXTURES / "pruned" / "sessions.sqlite", tmp_path / "s.db")
    return f"sqlite:///{tmp_path / 's.db'}"


async def test_sessions_that_an_earlier_version_pruned_are_read_and_trimmed_and_continue(pruned_database: str) -> None:
    """`joined` has parts of a history, and answers apart from their checkpoints; `s1` has full copies and a branch."""
    async with open_saver(pruned_database) as saver:
        graph = create_graph_agent(ScriptedChatModel(["Later."], cycle=True), checkpointer=saver)
        again = await Session(graph, "joined").run("text 0", input_id="i0")
        before = [await Session(graph, name).events() for name in ("s1", "joined")]
        report = await prune(pruned_database, keep_last=1)
        after = [await Session(graph, name).events() for name in ("s1", "joined")]
        second = await prune(pruned_database, keep_last=1)
        later = [(await Session(graph, name).run("And now?")).answer for name in ("s1", "joined")]
        events = [await Session(graph, name).events() for name in ("s1", "joined")]

    assert (again.answer, [len(each) for each in before], after == before) == ("Reply 0.", [30, 48], True)
    assert (report.checkpoints > 1, second.checkpoints, later) == (True, 0, ["Later.", "Later."])
    assert [each[: len(old)] for each, old in zip(events, before, strict=True)] == before
