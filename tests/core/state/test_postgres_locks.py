"""PostgreSQL locks lost during a run: by a restart, a partition, or a paused process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.core.state import locks as places
from graph_agent.core.state import postgres_locks as advisory_locks
from graph_agent.core.state import postgres_query
from graph_agent.core.state import registry as running
from graph_agent.core.state.locks import database_key
from graph_agent.core.state.postgres_locks import PostgresAddress
from graph_agent.errors import SessionLostError
from graph_agent.persistence import open_saver
from graph_agent.storage.checkpoints import postgres_fence
from graph_agent.storage.checkpoints.postgres import SharedPostgresSaver
from tests.support.agents import asks, dialogue, thread
from tests.support.gates import Gate, gated_tool, until
from tests.support.postgres_server import PostgresServer, on_postgres, postgres_server
from tests.support.sessions import SteeredProcess, start_steered_process
from tests.support.tcp_proxy import proxy_to

pytestmark = on_postgres

WORK = asks(("1", "work", {}))
DONE = ["No more actions.", "Done."]
LOCKS = "application_name = 'graph-agent locks'"


def agent(script: list[str], saver: Any, *tools: Any, **config: Any) -> Any:
    model = ScriptedChatModel(script)
    return create_graph_agent(model, tools=tools, checkpointer=saver, config=LoopConfig(**config))


def drop_locks(url: str) -> int:
    """End the connections that hold locks; how many they were."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {LOCKS}"
            " AND datname = current_database()"
        ).fetchall()
        return len(found)


async def test_a_run_that_another_one_has_overtaken_ends_when_its_lock_is_taken_anew(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    async with open_saver(postgres_url) as saver, open_saver(postgres_url) as other_saver:
        monkeypatch.setitem(places._known, id(other_saver), object())
        run = asyncio.create_task(Session(agent([WORK, *DONE], saver, gated_tool(gate)), "s1").run("go"))
        await gate.reached()
        other = agent(["Mine."], other_saver)
        await Session(other, "s1").run("now me")
        dropped = drop_locks(postgres_url)
        with pytest.raises(SessionLostError, match="another process may have continued session 's1' meanwhile"):
            await run
        messages = dialogue((await other.aget_state(thread())).values["messages"])

    assert (dropped, gate.cancelled, messages[-1]) == (1, True, ("ai", "Mine."))


async def test_a_run_over_a_saver_without_a_fence_ends_when_its_lock_is_lost(postgres_url: str) -> None:
    gate = Gate()
    async with AsyncPostgresSaver.from_conn_string(postgres_url) as first:
        await first.setup()
    # In pipeline mode, a write and its check cannot be one transaction.
    async with AsyncPostgresSaver.from_conn_string(postgres_url, pipeline=True) as saver:
        run = asyncio.create_task(Session(agent([WORK, *DONE], saver, gated_tool(gate)), "s1").run("go"))
        await gate.reached()
        drop_locks(postgres_url)
        with pytest.raises(SessionLostError):
            await run

        # Another process may have held it meanwhile; the next run acquires it again.
        assert (await Session(agent(["Next."], saver), "s1").run("and now?")).answer == "Next."


@asynccontextmanager
async def own_server() -> AsyncIterator[tuple[PostgresServer, str]]:
    context = postgres_server()
    server = await asyncio.to_thread(context.__enter__)
    try:
        yield server, server.url("postgres")
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


async def test_a_run_ends_when_the_database_is_gone_and_the_next_settles_its_calls() -> None:
    gate, began = Gate(), list[float]()
    async with own_server() as (server, url), open_saver(url) as saver:
        graph = agent([WORK, *DONE, "No more actions.", "After."], saver, gated_tool(gate))
        run = asyncio.create_task(Session(graph, "s1").run("go"))
        await gate.reached()
        await asyncio.to_thread(server.stop)
        began.append(asyncio.get_running_loop().time())
        with pytest.raises(SessionLostError, match="is lost, and with it the lock"):
            await run
        took_s = asyncio.get_running_loop().time() - began[0]
        await asyncio.to_thread(server.start)
        graph = agent(["After."], saver)
        answer = (await Session(graph, "s1").run("and now?")).answer
        results = [m.text for m in (await graph.aget_state(thread())).values["messages"] if m.type == "tool"]

    # Long before a database timeout.
    assert (gate.cancelled, answer, ["not known" in text for text in results], took_s < 20) == (
        *(True, "After."),
        [True],
        True,
    )


async def test_a_run_whose_lock_is_behind_a_stalled_proxy_is_stopped_and_begins_no_other_call(
    postgres: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advisory_locks, "FRESH_S", 0.5)
    monkeypatch.setattr(postgres_query, "ANSWER_S", 4.0)
    ran: list[str] = []
    first = Gate()

    @tool
    async def write(text: str) -> str:
        """Change something."""
        ran.append(text)
        if text == "first":
            await first.passing()
        return text

    with proxy_to(postgres.folder / ".s.PGSQL.5432") as proxy:
        name = postgres_url.partition("@/")[2].partition("?")[0]
        url = f"postgresql://postgres@127.0.0.1:{proxy.port}/{name}?sslmode=disable&gssencmode=disable"
        wave = asks(*((text, "write", {"text": text}) for text in ("first", "second")))
        async with open_saver(url) as saver:
            graph = agent([wave, *DONE], saver, write, max_parallel_calls=1)
            run = asyncio.create_task(Session(graph, "s1").run("go"))
            await first.reached()
            proxy.stall(b"graph-agent locks")
            held = running._locks._databases[await database_key(saver)]  # type: ignore[index]  # it is in PostgreSQL
            await until(lambda: time.monotonic() - held._verified_at > advisory_locks.FRESH_S)
            first.open()
            with pytest.raises(SessionLostError, match="did not answer within 4 seconds"):
                await run
            proxy.close()

    assert ran == ["first"]


async def overtake(process: SteeredProcess, saver: Any, folder: Path) -> tuple[str, bytes, bool, bool]:
    """Continue the session of a paused process, then the process.

    Returns:
        The new answer, the process's output, whether it failed because the session was lost, and whether the
        conversation is the same after it.
    """
    other = agent(["Mine."], saver)
    answer = (await Session(other, "s1").run("now me")).answer
    before = dialogue((await other.aget_state(thread())).values["messages"])
    (folder / "go").touch()
    os.kill(process.pid, signal.SIGCONT)
    out, errors = await process.ended()
    after = dialogue((await other.aget_state(thread())).values["messages"])
    return answer, out, b"SessionLostError" in errors, after == before


async def test_a_paused_process_does_not_write_over_newer_messages(postgres_url: str, tmp_path: Path) -> None:
    process = await start_steered_process(tmp_path, postgres_url)
    os.kill(process.pid, signal.SIGSTOP)
    dropped = drop_locks(postgres_url)
    async with open_saver(postgres_url) as saver:
        overtaken = await overtake(process, saver, tmp_path)

    assert (dropped, overtaken) == (1, ("Mine.", b"", True, True))


async def test_the_database_releases_the_locks_of_a_paused_process(postgres_url: str, tmp_path: Path) -> None:
    lease_s = 2
    process = await start_steered_process(tmp_path, postgres_url, str(lease_s))
    async with open_saver(postgres_url) as saver:
        # A process that works keeps its locks for longer than the lease.
        until_s = time.monotonic() + 2 * lease_s
        await until(lambda: time.monotonic() > until_s)
        busy_before = not await running.is_idle(saver, "s1")
        os.kill(process.pid, signal.SIGSTOP)
        while not await running.is_idle(saver, "s1"):
            await asyncio.sleep(0.05)
        overtaken = await overtake(process, saver, tmp_path)

    assert (busy_before, overtaken) == (True, ("Mine.", b"", True, True))


async def test_a_process_whose_locks_expired_goes_on_if_no_other_has_continued_its_session(
    postgres_url: str, tmp_path: Path
) -> None:
    process = await start_steered_process(tmp_path, postgres_url, "2")
    async with open_saver(postgres_url) as saver:
        os.kill(process.pid, signal.SIGSTOP)
        while not await running.is_idle(saver, "s1"):
            await asyncio.sleep(0.05)
        (tmp_path / "go").touch()
        os.kill(process.pid, signal.SIGCONT)
        out, _ = await process.ended()

    assert json.loads(out) == {"answer": "Done.", "status": "COMPLETED", "results": {"1": "worked", "2": "worked"}}


@pytest.mark.parametrize("mid_pipeline", [False, True])
async def test_a_writer_that_stalls_in_a_transaction_does_not_block_the_session(
    postgres_url: str, mid_pipeline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_fence, "PAUSE_S", 2)
    async with open_saver(postgres_url) as saver, open_saver(postgres_url) as stalled:
        graph = agent(["One.", "Two."], saver)
        await Session(graph, "s1").run("first")
        assert isinstance(stalled, SharedPostgresSaver)
        answer, ended = "", False
        try:
            async with stalled._exclusive_transaction(("s1", "")) as (connection, _), connection.pipeline():
                if mid_pipeline:
                    await connection.execute("SELECT 1")
                answer = (await Session(graph, "s1").run("second")).answer
        except psycopg.OperationalError:
            ended = True

    assert (answer, ended) == ("Two.", True)


async def test_a_cut_connection_is_detected(postgres_url: str) -> None:
    given = f"{postgres_url}&keepalives_idle=7"
    async with open_saver(given) as saver:
        assert isinstance(saver, SharedPostgresSaver)
        async with saver._pool.connection() as connection:
            limits = connection.info.get_parameters()
        place = await database_key(saver)
    assert isinstance(place, PostgresAddress)

    names = ("connect_timeout", "tcp_user_timeout", "keepalives_idle", "keepalives_interval", "keepalives_count")
    assert ([limits[name] for name in names], "tcp_user_timeout=10000" in place.conninfo) == (
        ["10", "10000", "7", "5", "2"],
        True,
    )
