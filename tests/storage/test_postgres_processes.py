"""Several processes on one PostgreSQL database: exclusive runs, steering, aborts and kills."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver
from tests.support.fault_jobs import ALL
from tests.support.fault_server import ForkServer, fork_server
from tests.support.held_sessions import holder_pid, run_after_holder_killed, run_while_held
from tests.support.postgres_server import PostgresServer, on_postgres
from tests.support.sessions import GO_ON, NOT_KNOWN, conversation_events, start_steered_process, takes_new_input
from tests.support.steered_run import opened

pytestmark = on_postgres


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with fork_server(tmp_path_factory.mktemp("server")) as served:
        yield served


async def test_a_second_run_is_refused_across_processes(server: ForkServer, postgres_url: str, tmp_path: Path) -> None:
    server.begin("hold", folder=str(tmp_path), url=postgres_url)

    outcome = await run_while_held(server, tmp_path, postgres_url)

    assert outcome == ("Mine.", 0, "Other.")


async def test_the_lock_of_a_killed_process_is_taken_over_at_once(
    server: ForkServer, postgres_url: str, tmp_path: Path
) -> None:
    server.begin("hold", folder=str(tmp_path), url=postgres_url)

    outcome = await run_after_holder_killed(server, tmp_path, postgres_url)

    assert outcome == (-9, "Mine.")


async def test_a_forked_child_keeps_no_lock_of_its_killed_parent(
    server: ForkServer, postgres_url: str, tmp_path: Path
) -> None:
    server.begin("hold", folder=str(tmp_path), url=postgres_url, forks=True)
    parent = await holder_pid(tmp_path)
    child = int((tmp_path / "child").read_text())
    os.kill(parent, signal.SIGKILL)
    ended = server.end()
    try:
        async with open_saver(postgres_url) as saver:
            graph = create_graph_agent(ScriptedChatModel(["Mine."]), checkpointer=saver)
            result = await Session(graph, "s1").run("now me")
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)

    assert (ended, result.answer) == (-9, "Mine.")


async def test_another_process_is_steered_and_followed_up(postgres_url: str, tmp_path: Path) -> None:
    process = await start_steered_process(tmp_path, postgres_url)
    async with opened(tmp_path / "s.db", [], postgres_url) as talk:
        await talk.steer("Use metres.")
        await talk.follow_up("and then?")
        (tmp_path / "go").touch()
        out, _ = await process.ended()
        conversation = await conversation_events(talk)

    assert (json.loads(out)["answer"], conversation) == (
        "Done.",
        [
            ("user_message", "go"),
            ("steering", "Use metres."),
            ("agent_response", "Done."),
            ("user_message", "and then?"),
            ("agent_response", "And."),
        ],
    )


async def test_another_process_is_stopped(postgres_url: str, tmp_path: Path) -> None:
    process = await start_steered_process(tmp_path, postgres_url)
    async with opened(tmp_path / "s.db", GO_ON, postgres_url) as talk:
        stopped = await talk.abort()
        out, _ = await process.ended()
        usable = await takes_new_input(talk)

    assert (stopped, json.loads(out)["status"], json.loads(out)["results"], usable) == (
        True,
        "ABORTED",
        {"1": {"error": NOT_KNOWN}},
        True,
    )


VARIANT = {"structured": False, "ledger": True, "input_id": "i1"}


@pytest.fixture(scope="module")
def empty(postgres: PostgresServer) -> Iterator[str]:
    """A database with its tables, to copy."""

    async def make(url: str) -> None:
        async with open_saver(url):
            pass

    with postgres.database() as url:
        asyncio.run(make(url))
        yield url


@pytest.mark.parametrize("step", [25, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_killed_session_resumes_and_settles_its_calls_truthfully(
    server: ForkServer, postgres: PostgresServer, empty: str, tmp_path: Path, step: int
) -> None:
    with postgres.database(empty) as url:
        server.run("run_to", folder=str(tmp_path), variant=VARIANT, kill_at=ALL, url=url)
    total = len((tmp_path / "reached").read_text().splitlines())

    faults: list[str] = []
    for kill_at in range(0, total, step):
        folder = tmp_path / str(kill_at)
        folder.mkdir()
        with ExitStack() as stack:
            url = stack.enter_context(postgres.database(empty))
            server.run("run_to", folder=str(folder), variant=VARIANT, kill_at=kill_at, url=url)
            ways = ["again", "abort"] if kill_at % 2 else ["resume", "input"]
            urls = {how: stack.enter_context(postgres.database(url)) for how in ways}
            server.run("go_on", folder=str(folder), variant=VARIANT, ways=ways, urls=urls)
        found = json.loads((folder / "faults").read_text())
        faults += [f"killed at {kill_at}; then {how}: {fault}" for how, wrong in found.items() for fault in wrong]

    assert (faults, total >= 50) == ([], True)
