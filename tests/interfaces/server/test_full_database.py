"""A server with a full database: callers receive the error, and the session settles its calls once there is space."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from fastapi import FastAPI
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from psycopg_pool import PoolTimeout

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.base._internal.failure_log import is_out_of_space
from graph_agent.base.history.call_events import UNKNOWN_OUTCOME
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.errors import SessionLostError
from graph_agent.interfaces.server.host import Host, open_host
from graph_agent.interfaces.server.problems import ProblemError, problem_of_failure
from graph_agent.persistence import prune
from graph_agent.server import AgentSource, ServerSettings, create_app
from graph_agent.storage.checkpoints.sqlite_saver import SharedSqliteSaver
from tests.interfaces.server.hosting import ask, outcome_of, start_run
from tests.support.agents import asks


def source(graph: CompiledAgentGraph, file: Path) -> AgentSource:
    @asynccontextmanager
    async def opened() -> AsyncIterator[CompiledAgentGraph]:
        yield graph

    return AgentSource("scripted", "", f"sqlite:///{file}", opened)


def resize(saver: Any, pages: int) -> None:
    """Limit the growth of the database to so many pages; no limit for a negative number."""
    assert isinstance(saver, SharedSqliteSaver)
    [[used]] = saver.conn.execute("PRAGMA page_count").fetchall()
    saver.conn.execute(f"PRAGMA max_page_count={used + pages if pages >= 0 else 1 << 30}")


async def test_a_call_whose_result_could_not_be_stored_is_unknown_when_there_is_room_again(tmp_path: Path) -> None:
    hosts: list[Host] = []
    charged: list[str] = []

    @tool
    async def charge() -> str:
        """Charge, and come back with much to store."""
        charged.append("charged")
        resize(hosts[0].saver, 0)
        return "x" * 20_000

    # The model may be asked once or twice more before the failure to store the result ends the run.
    script = [asks(("1", "charge", {})), "No more actions.", "After.", "After."]
    graph = create_graph_agent(ScriptedChatModel(script), tools=[charge])
    async with open_host(source(graph, tmp_path / "s.db"), ServerSettings()) as host:
        hosts.append(host)
        with pytest.raises(ProblemError) as error:
            await outcome_of(await start_run(host, ask(session_id="talk")))
        resize(host.saver, -1)
        after = await outcome_of(await start_run(host, ask(HumanMessage("and now?"), session_id="talk")))
        values = (await host.kept.aget_state({"configurable": {"thread_id": "talk"}})).values

    results = [message.text for message in values["messages"] if message.type == "tool"]
    assert (error.value.kind, error.value.status, charged, after.text, results) == (
        "storage",
        507,
        ["charged"],
        "After.",
        [UNKNOWN_OUTCOME],
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_request_that_cannot_be_stored_is_refused_before_its_stream_begins(
    tmp_path: Path, path: str, stream: bool
) -> None:
    graph = create_graph_agent(ScriptedChatModel(["Stored.", "Never stored."]))
    app = create_app(source(graph, tmp_path / "s.db"))

    def body(text: str) -> dict[str, Any]:
        return {"model": "scripted", "max_tokens": 9, "stream": stream, "messages": [{"role": "user", "content": text}]}

    async with serving(app) as client:
        kept = await client.post(path, json=body("hello"), headers={"x-session-id": "talk"})
        resize(app.state.graph_agent.chat.runs.host.saver, 0)
        refused = await client.post(path, json=body("x" * 9000), headers={"x-session-id": "talk"})
        session = await client.get("/sessions/talk")

    ended = ["[DONE]" in refused.text, "message_stop" in refused.text, "is full" in refused.text]
    assert (kept.status_code, refused.status_code, refused.headers.get("x-should-retry"), ended) == (
        200,
        507,
        "false",
        [False, False, True],
    )
    assert (session.json()["status"], session.json()["answer"]) == ("COMPLETED", "Stored.")


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
    ):
        yield client


def _full_sqlite() -> BaseException:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


def _while_handling(error: BaseException) -> BaseException:
    try:
        try:
            raise error
        except BaseException:  # noqa: BLE001 - any of them may be the cause of another
            raise ValueError("cannot commit - no transaction is active")  # noqa: B904 - as a library leaves it
    except ValueError as raised:
        return raised


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (_full_sqlite(), True),
        (_while_handling(_full_sqlite()), True),
        (OSError(28, "No space left on device"), True),
        (psycopg.errors.DiskFull("could not extend file"), True),
        (sqlite3.OperationalError("database is locked"), False),
        (OSError(13, "Permission denied"), False),
        (psycopg.OperationalError("the connection is lost"), False),
    ],
)
def test_a_full_disk_is_distinguished_from_other_failures(error: BaseException, full: bool) -> None:
    assert (is_out_of_space(error), problem_of_failure(error).status == 507) == (full, full)


@pytest.mark.parametrize("error", [psycopg.errors.AdminShutdown("stopped"), PoolTimeout("no connection after 30 s")])
def test_a_lost_connection_to_postgres_is_answered_503_and_not_retried_by_clients(error: Exception) -> None:
    problem = problem_of_failure(error)

    assert (problem.status, problem.headers) == (503, {"x-should-retry": "false"})


def test_a_session_that_another_process_has_taken_over_is_answered_503() -> None:
    problem = problem_of_failure(SessionLostError("Session 's1' was continued by another run."))

    assert (problem.kind, problem.status, problem.headers) == ("taken_over", 503, {"x-should-retry": "false"})


async def test_every_route_refuses_a_damaged_session_by_its_name(tmp_path: Path) -> None:
    app = create_app(source(create_graph_agent(ScriptedChatModel(["Hi."], cycle=True)), tmp_path / "s.db"))
    chat = {"messages": [{"role": "user", "content": "hello"}], "model": "scripted"}
    there = httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://here")
    async with app.router.lifespan_context(app), there as http:
        headers = {"X-Session-Id": "s1"}
        first = await http.post("/v1/chat/completions", json=chat, headers=headers)
        with closing(sqlite3.connect(tmp_path / "s.db")) as database, database:
            database.execute(
                "UPDATE checkpoints SET parent_checkpoint_id = NULL WHERE json_extract(metadata, '$.step') = 1"
            )
        answers = [
            await http.post("/v1/chat/completions", json=chat, headers=headers),
            await http.get("/sessions/s1"),
            await http.post("/sessions/s1/resume"),
            await http.get("/memory/sessions/s1/events"),
        ]

    assert (first.status_code, [answer.status_code for answer in answers]) == (200, [500] * 4)
    assert ["'s1' is damaged" in answer.text for answer in answers] == [True] * 4


async def test_a_request_with_a_key_gets_its_answer_again_after_a_pruning(tmp_path: Path) -> None:
    @tool
    async def look(at: str) -> str:
        """Look."""
        return f"saw {at}"

    script = [
        reply for number in range(5) for reply in (asks((f"c{number}", "look", {"at": "x"})), f"Answer {number}.")
    ]
    graph = create_graph_agent(ScriptedChatModel(script), tools=[look])
    app = create_app(source(graph, tmp_path / "s.db"))

    async def answer(number: int) -> Any:
        chat = {"messages": [{"role": "user", "content": f"m{number}"}], "model": "scripted"}
        headers = {"X-Session-Id": "s1", **({"Idempotency-Key": f"k{number}"} if number > 1 else {})}
        whole = (await http.post("/v1/chat/completions", json=chat, headers=headers)).json()
        return whole["choices"], whole["usage"]

    there = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here")
    async with app.router.lifespan_context(app), there as http:
        first = [await answer(number) for number in range(5)]
        report = await prune(f"sqlite:///{tmp_path / 's.db'}", keep_last=1)
        again = [await answer(number) for number in range(2, 5)]

    assert (again, report.checkpoints > 6) == (first[2:], True)
