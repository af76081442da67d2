"""Sessions in a real PostgreSQL server: durability, size, and one run at a time per session."""

from __future__ import annotations

import asyncio
import inspect
import math
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy.exc import DBAPIError

from graph_agent import ScriptedChatModel, Session, SessionMemory, create_graph_agent
from graph_agent.base import postgres_tables
from graph_agent.base.database_urls import without_password
from graph_agent.base.inbox import new_note
from graph_agent.core.state.locks import database_key
from graph_agent.core.state.postgres_locks import PostgresAddress
from graph_agent.core.state.registry import inbox_of, is_idle
from graph_agent.errors import ConfigError, SessionBusyError, SessionLostError
from graph_agent.interfaces.server.a2a.task_tables import open_task_tables
from graph_agent.persistence import open_saver, open_store, strict_serializer
from graph_agent.storage.checkpoints.postgres import SAVER_CONNECTIONS, SharedPostgresSaver, SharedPostgresStore
from tests.support.agents import asks, echo, says, thread
from tests.support.gates import Gate, gated_tool
from tests.support.postgres_server import PostgresServer, on_postgres

pytestmark = on_postgres


def agent(script: list[str], saver: Any, **options: Any) -> Any:
    return create_graph_agent(ScriptedChatModel(script), checkpointer=saver, **options)


async def test_a_session_outlives_its_saver(postgres_url: str) -> None:
    script = [asks(("1", "echo", {"text": "hi"})), "No more actions.", "One."]
    async with open_saver(postgres_url) as saver:
        first = await Session(agent(script, saver, tools=[echo]), "s1").run("first")
    async with open_saver(postgres_url) as saver:
        graph = agent(["Two."], saver)
        second = await Session(graph, "s1").run("second")
        types = [event["type"] for event in await SessionMemory(graph).get_session_events("s1")]
        sessions = await SessionMemory(graph).list_sessions()
        idle = await is_idle(saver, "s1")

    assert (first.answer, first.results, second.answer, sessions, idle) == ("One.", {"1": "hi"}, "Two.", ["s1"], True)
    assert types == [
        *("user_message", "status", "plan", "tool_call", "tool_result", "plan", "agent_response", "status"),
        *("user_message", "status", "agent_response", "status"),
    ]


async def test_a_session_grows_with_its_turns_and_not_with_their_square(postgres_url: str) -> None:
    sizes: list[int] = []
    async with open_saver(postgres_url) as saver:
        session = Session(agent(["A."] * 60, saver), "s1")
        for _ in range(3):
            for _ in range(20):
                await session.run("x" * 2_000)
            sizes.append(_stored_bytes(postgres_url))

    # Kept whole at every checkpoint, the last twenty turns would take five times what the first twenty took.
    assert sizes[2] - sizes[1] < 2 * sizes[0], sizes


def _stored_bytes(url: str) -> int:
    query = (
        "SELECT (SELECT sum(length(blob)) FROM checkpoint_blobs) + (SELECT sum(length(blob)) FROM checkpoint_writes)"
        " + (SELECT sum(length(checkpoint::text)) FROM checkpoints)"
    )
    with psycopg.connect(url) as connection:
        [[found]] = connection.execute(query).fetchall()
        return int(found)


@dataclass
class Stranger:
    """A type that our checkpoints do not contain."""

    name: str


async def test_a_checkpoint_builds_no_type_that_is_not_allowed(postgres_url: str) -> None:
    kind, _ = strict_serializer().dumps_typed(["x"])
    _, planted = strict_serializer().dumps_typed(Stranger("x"))
    async with open_saver(postgres_url) as saver:
        graph = agent(["One."], saver)
        await Session(graph, "s1").run("first")
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(
                "UPDATE checkpoint_blobs SET type = %s, blob = %s WHERE channel = 'usage'", [kind, planted]
            )
        values = (await graph.aget_state(thread())).values

    assert values["usage"] == {"name": "x"}


async def test_characters_that_postgres_cannot_store_are_removed(postgres_url: str) -> None:
    async with open_saver(postgres_url) as saver, open_store(postgres_url) as store:
        session = Session(agent(["ReceivedNotes."], saver, store=store), "s1")
        await session.steer("be\x00brief")
        result = await session.run("hel\x00lo \ud800")
        inputs = [
            event["content"]
            for event in await session.events()
            if event["type"] == "steering" or event["type"] == "user_message"
        ]

    assert (result.answer, inputs) == ("ReceivedNotes.", ["hel\ufffdlo \ufffd", "be\ufffdbrief"])


async def test_notes_are_read_in_order_and_deleted(postgres_url: str) -> None:
    async with open_saver(postgres_url) as saver, open_store(postgres_url) as store:
        inbox = await inbox_of(saver, store)
        notes = [new_note("steer", str(number)) for number in range(130)]
        await asyncio.gather(*(inbox.add("s.1", note) for note in reversed(notes)))
        await inbox.add("s.10", new_note("steer", "another's"))
        read = await inbox.read("s.1")
        await inbox.forget("s.1", [note.key for note in notes])

        assert (read, await inbox.read("s.1"), len(await inbox.read("s.10"))) == (notes, [], 1)


async def test_an_operation_on_the_store_is_not_cut_in_two(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        for _ in range(20):
            task = asyncio.create_task(store.aput(("a",), "k", {"n": 1}))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await store.aput(("a",), "k", {"n": 2})
        item = await store.aget(("a",), "k")
        assert isinstance(store, SharedPostgresStore)

        assert (item is not None and item.value, await store.is_empty(("a",)), await store.is_empty(("b",))) == (
            {"n": 2},
            False,
            True,
        )


async def test_tables_are_made_by_several_at_once(postgres_url: str) -> None:
    async def opened() -> bool:
        async with open_saver(postgres_url) as saver, open_store(postgres_url) as store:
            await store.aput(("a",), "k", {})
            return await saver.aget_tuple(thread()) is None

    assert await asyncio.gather(*(opened() for _ in range(5))) == [True] * 5


async def test_a_process_that_stalls_while_it_makes_tables_does_not_block_the_others(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_tables, "_CREATE_S", 1)
    stalls, made = asyncio.Event(), list[str]()

    async def stall(_: object) -> None:
        stalls.set()
        await asyncio.Event().wait()

    async def make(_: object) -> None:
        made.append("made")

    stalled = asyncio.create_task(postgres_tables.make_tables(postgres_url, stall))
    await stalls.wait()
    async with asyncio.timeout(60):
        await postgres_tables.make_tables(postgres_url, make)
    stalled.cancel()
    await asyncio.gather(stalled, return_exceptions=True)

    assert made == ["made"]


async def test_a_saver_whose_idle_connections_are_all_dead_reads_again_without_delay(postgres_url: str) -> None:
    async with open_saver(postgres_url) as saver:
        assert isinstance(saver, SharedPostgresSaver)
        async with AsyncExitStack() as held:
            for _ in range(SAVER_CONNECTIONS):
                await held.enter_async_context(saver._pool.connection())
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            (dropped,) = connection.execute(
                "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchone() or (0,)
        # The pool alone would wait 1 + 2 + 4 + … seconds, and fail after 30.
        async with asyncio.timeout(15):
            found = await saver.aget_tuple(thread())

    assert (dropped, found) == (SAVER_CONNECTIONS, None)


async def test_a_saver_reads_over_several_connections_at_once(postgres_url: str) -> None:
    async with open_saver(postgres_url) as saver, asyncio.timeout(30):
        assert isinstance(saver, SharedPostgresSaver)
        async with saver._cursor():
            assert await saver.aget_tuple(thread()) is None


@pytest.mark.parametrize("first", ["ainvoke", "invoke"])
async def test_a_second_run_is_refused_in_one_process(first: str, postgres_url: str) -> None:
    gate = Gate()
    async with open_saver(postgres_url) as saver, open_saver(postgres_url) as other:
        script = [asks(("1", "work", {})), "No more actions.", "Done."]
        graph = agent(script, saver, tools=[gated_tool(gate)])
        given, config = says("go"), thread()
        run = asyncio.create_task(
            graph.ainvoke(given, config) if first == "ainvoke" else asyncio.to_thread(graph.invoke, given, config)
        )
        await gate.reached()

        with pytest.raises(SessionBusyError, match="'s1' is running already"):
            await Session(agent(["Mine."], other), "s1").run("me too")
        with pytest.raises(SessionBusyError):
            await asyncio.to_thread(agent(["Mine."], other).invoke, given, config)
        seen = [await is_idle(saver, "s1"), await is_idle(other, "s1"), await is_idle(other, "s2")]
        other_session = await Session(agent(["Beside."], other), "s2").run("hello")
        gate.open()
        await run

        assert (seen, other_session.answer, await is_idle(other, "s1")) == ([False, False, True], "Beside.", True)


async def test_a_run_that_is_cancelled_while_it_asks_for_its_lock_leaves_none(postgres_url: str) -> None:
    async with open_saver(postgres_url) as saver:
        graph = agent(["One."] * 40, saver)
        for runs in range(12):
            run = asyncio.create_task(Session(graph, "s1").run("go"))
            for _ in range(runs):
                await asyncio.sleep(0)
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
        async with asyncio.timeout(30):
            while not await is_idle(saver, "s1"):
                await asyncio.sleep(0)

        assert (await Session(graph, "s1").run("now")).answer == "One."


async def test_blocking_runs_use_every_saver_from_another_event_loop(postgres_url: str) -> None:
    def run(saver: Any, session_id: str) -> list[str]:
        graph, config = agent(["One.", "Two."], saver), thread(session_id)
        answers = [Session(graph, session_id).run_sync("one", input_id="i").answer]
        answers.append(graph.invoke(says("two"), config)["messages"][-1].text)
        answers.append(Session(graph, session_id).run_sync("one", input_id="i").answer)
        graph.update_state(config, {"messages": [("user", "three")]})
        return [*answers, *(message.text for message in graph.get_state(config).values["messages"])]

    async with open_saver(postgres_url) as ours, AsyncPostgresSaver.from_conn_string(postgres_url) as theirs:
        with PostgresSaver.from_conn_string(postgres_url) as blocking:
            results = [await asyncio.to_thread(run, each, f"s{at}") for at, each in enumerate((ours, theirs, blocking))]

    assert results == [["One.", "Two.", "One.", "one", "One.", "two", "Two.", "three"]] * 3


@pytest.mark.parametrize("kind", [AsyncConnectionPool, ConnectionPool, psycopg.AsyncConnection, psycopg.Connection])
async def test_every_kind_of_saver_has_the_same_place(kind: Any, postgres_url: str) -> None:
    def saver() -> Any:
        return (AsyncPostgresSaver if "Async" in kind.__name__ else PostgresSaver)(connection)

    async with open_saver(postgres_url) as ours, AsyncExitStack() as stack:
        place = await database_key(ours)
        made = kind(postgres_url, open=False) if "Pool" in kind.__name__ else kind.connect(postgres_url)
        opened: Any = await made if inspect.isawaitable(made) and "Pool" not in kind.__name__ else made
        if "Async" in kind.__name__:
            connection = await stack.enter_async_context(opened)
        else:
            connection = stack.enter_context(opened)

        found = [await database_key(saver()), await asyncio.to_thread(asyncio.run, database_key(saver()))]

    assert (found, isinstance(place, PostgresAddress)) == ([place, place], True)


async def test_a_lock_is_taken_anew_when_the_database_has_dropped_its_connection(postgres_url: str) -> None:
    gate = Gate()
    async with open_saver(postgres_url) as saver:
        graph = agent([asks(("1", "work", {})), "No more actions.", "Done."], saver, tools=[gated_tool(gate)])
        run = asyncio.create_task(Session(graph, "s1").run("go"))
        await gate.reached()
        before = _holders(postgres_url)
        _drop(postgres_url, before)
        async with asyncio.timeout(30):
            while _holders(postgres_url) in ([], before):
                await asyncio.sleep(0.01)
        gate.open()

        assert ((await run).answer, len(before)) == ("Done.", 1)


async def test_a_run_stops_when_another_process_holds_its_session(postgres_url: str) -> None:
    gate = Gate()
    async with open_saver(postgres_url) as saver:
        graph = agent([asks(("1", "work", {}))], saver, tools=[gated_tool(gate)])
        run = asyncio.create_task(Session(graph, "s1").run("go"))
        await gate.reached()
        with psycopg.connect(postgres_url, autocommit=True) as thief:
            [[key]] = thief.execute(
                "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory'"
            ).fetchall()
            waiting = asyncio.create_task(asyncio.to_thread(thief.execute, "SELECT pg_advisory_lock(%s)", [key]))
            async with asyncio.timeout(30):
                while not _waiters(postgres_url):
                    await asyncio.sleep(0.01)
            _drop(postgres_url, _holders(postgres_url))
            await waiting
            with pytest.raises(SessionLostError, match="another process has locked session 's1' since"):
                await run
        kept = [event["type"] for event in await SessionMemory(graph).get_session_events("s1")]

    # Nothing is added to a history that may be the other run's by now, not even that this run was stopped.
    assert (kept, gate.cancelled) == (["user_message", "status", "plan", "tool_call"], True)


def _holders(url: str) -> list[int]:
    with psycopg.connect(url, autocommit=True) as connection:
        query = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
        return [pid for (pid,) in connection.execute(query).fetchall()]


def _waiters(url: str) -> list[int]:
    with psycopg.connect(url, autocommit=True) as connection:
        query = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        return [pid for (pid,) in connection.execute(query).fetchall()]


def _drop(url: str, pids: list[int]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid, 5000) FROM unnest(%s::int[]) AS pid", [pids])


async def test_a_brief_database_outage_is_survived(postgres_url: str) -> None:
    async with open_saver(postgres_url) as saver, open_store(postgres_url) as store:
        session = Session(agent(["One.", "Two."], saver, store=store), "s1")
        await session.run("first")
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

        assert (await session.run("second")).answer == "Two."


async def test_a_missing_database_is_reported_without_its_password(postgres: PostgresServer) -> None:
    url = f"postgresql://someone:tops3cret@/nowhere?host={postgres.folder}&password=tops3cret"

    with pytest.raises(ConfigError, match="the database cannot be used") as error:
        async with open_saver(url):
            pass

    assert ("tops3cret" in str(error.value), "someone:…@/nowhere" in str(error.value)) == (False, True)


def test_a_password_is_not_shown() -> None:
    shown = [
        without_password(url)
        for url in (
            "postgresql://me:a/b@c@host:5432/db",
            "postgres://me@host/db?password=x&sslmode=require",
            "postgresql://host/db",
            "sqlite:///a:b@c.db",
            "postgresql://me:a?b@host/db",
            "postgresql://host/db?x=1&pass%77ord=x%26y&sslpassword=z",
            "host=h password=s3!@#' user=me",
            r"password = 'it\'s two' user=me sslpassword=x",
        )
    ]

    assert shown == [
        "postgresql://me:…@host:5432/db",
        "postgres://me@host/db?password=…&sslmode=require",
        "postgresql://host/db",
        "sqlite:///a:b@c.db",
        "postgresql://me:…@host/db",
        "postgresql://host/db?x=1&pass%77ord=…&sslpassword=…",
        "host=h password=… user=me",
        "password = … user=me sslpassword=…",
    ]


@pytest.mark.parametrize("url", ["postgresql://me:s3%zzcret@h/db", "postgresql://h/db?password=s3%zzcret"])
async def test_a_drivers_error_shows_no_password(url: str) -> None:
    with pytest.raises(ConfigError, match="invalid percent-encoded token") as error:
        async with open_saver(url):
            pass

    assert "s3" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "connect_timeout"),
    [
        ("postgresql://connect_timeout:keepalives_idle@localhost/tcp_user_timeout", 10),
        ("postgresql://me@localhost/db?application_name=connect_timeout", 10),
        ("postgresql://me@localhost/db?connect_timeout=3", None),
        ("postgresql://me@localhost/db?connect%5Ftimeout=3", None),
    ],
)
def test_a_url_replaces_only_the_options_that_it_sets(url: str, connect_timeout: int | None) -> None:
    options = postgres_tables.connection_options(url)

    assert (options.get("connect_timeout"), options["keepalives_idle"], options["tcp_user_timeout"]) == (
        connect_timeout,
        5,
        10_000,
    )


def indexes(url: str) -> list[Any]:
    """The indexes of a database, each with whether queries use it."""
    query = (
        "SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
        " WHERE c.relnamespace = current_schema()::regnamespace ORDER BY c.relname"
    )
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.parametrize("opens", [open_saver, open_store, open_task_tables])
async def test_tables_are_completed_after_a_kill_between_two_statements_of_their_creation(
    opens: Any, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: Any = psycopg.AsyncConnection.wait
    calls = 0

    async def start(url: str, limit: float) -> list[Any]:
        """Open a database, and lose the connections at a number of exchanges with the server."""
        nonlocal calls
        calls, task = 0, asyncio.current_task()

        async def counted(connection: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += asyncio.current_task() is task
            if calls == limit:
                with psycopg.connect(url, autocommit=True) as other:
                    other.execute(
                        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    )
            return await waits(connection, *args, **kwargs)

        with monkeypatch.context() as patched:
            patched.setattr(psycopg.AsyncConnection, "wait", counted)
            with suppress(ConfigError, psycopg.Error, DBAPIError):
                async with opens(url):
                    pass
        return indexes(url)

    with postgres.database() as url:
        whole, exchanges = await start(url, math.inf), calls
    left = []
    for limit in range(1, exchanges, max(1, exchanges // 8)):
        with postgres.database() as url:
            await start(url, limit)
            left.append(await start(url, math.inf))

    assert left == [whole] * len(left)


async def test_an_index_whose_creation_was_killed_is_repaired(postgres_url: str) -> None:
    async with open_saver(postgres_url):
        pass
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'graph_agent_sessions'::regclass")
    before = dict(indexes(postgres_url))["graph_agent_sessions"]

    async with open_saver(postgres_url):
        pass

    assert (before, dict(indexes(postgres_url))["graph_agent_sessions"]) == (False, True)


async def test_a_closed_store_leaves_no_task(postgres_url: str) -> None:
    before = asyncio.all_tasks()
    async with open_store(postgres_url) as store:
        await store.aput(("a",), "k", {})

    assert asyncio.all_tasks() == before
