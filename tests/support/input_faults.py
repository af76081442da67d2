"""Inputs with ids whose saver fails at any write, and that are sent again.

The input has a wave of reading and writing calls, a delegation whose call needs approval, and a call of the agent
itself that needs it. Its client answers each request for approval under an id of its own. After a fault, the client
sends everything again.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, cast

import psycopg
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph
from psycopg import AsyncConnection, AsyncCursor
from psycopg.rows import DictRow

from graph_agent import GraphDelegate, LoopConfig, RunResult, Session, create_graph_agent
from graph_agent.approvals import approve
from graph_agent.errors import SessionLostError
from graph_agent.persistence import strict_serializer
from graph_agent.storage.checkpoints.postgres import open_pool
from tests.support.fault_agent import (
    ANSWER,
    GoesOn,
    Log,
    Reach,
    WatchedConnection,
    WatchedPostgresSaver,
    Wave,
    WriteFailedError,
    file_log,
    logging_tools,
    nothing,
    open_watched_saver,
    read_log,
)
from tests.support.fault_truth import untrue

WAVES: list[Wave] = [
    [("1-look", "look", ()), ("1-charge", "charge", ()), ("1-bank", "delegate_to_bank", ())],
    [("2-pay", "pay", ())],
]
BANK: list[Wave] = [[("b-charge", "charge", ()), ("b-pay", "pay", ())]]


def agent_over(saver: BaseCheckpointSaver[Any], log: Log) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The agent and its delegate."""
    config = LoopConfig(max_steps=9, tool_calling="native", approve=["pay"])
    tools = [tool for tool in logging_tools(log) if tool.name in ("look", "charge", "pay")]
    bank = create_graph_agent(GoesOn(responses=[], waves=BANK), tools=tools, config=config)
    delegate = GraphDelegate("bank", "Pays.", bank)
    model = GoesOn(responses=[], waves=WAVES)
    return create_graph_agent(model, tools=tools, delegates=[delegate], config=config, checkpointer=saver)


async def ask(session: Session) -> RunResult:
    """Send the input, and approve each call that waits; always under the same ids."""
    result, number = await session.run("go", input_id="go"), 0
    while result.interrupts:
        number += 1
        result = await session.resume(approve(), input_id=f"answer {number}")
    return result


async def faults_of(session: Session, log: Callable[[], list[tuple[str, str]]]) -> list[str]:
    """Send everything again after a fault, twice, and return what is wrong afterwards."""
    try:
        first, second = await ask(session), await ask(session)
    except Exception as error:  # noqa: BLE001 - reported as a fault
        return [f"it is not answered again: {error!r}"]
    values = (await session.graph.aget_state({"configurable": {"thread_id": session.id}})).values
    faults = untrue(values["messages"], values["events"], log())
    inputs = [message.text for message in values["messages"] if message.type == "human"]
    events = [event["content"] for event in values["events"] if event["type"] in ("user_message", "agent_response")]
    found = (first.answer, inputs, events, asdict(second) == asdict(first))
    expected = (ANSWER, ["go"], ["go", ANSWER], True)
    return faults if found == expected else [*faults, f"answer, inputs, events and repetition are {found}"]


class WatchedCursor(AsyncCursor[Any]):
    """A cursor that calls `reach` before and after each statement that changes something."""

    reach: Reach = staticmethod(nothing)

    async def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        """Behaves like `AsyncCursor.execute`."""
        return await self._watched(query, super().execute(query, *args, **kwargs))

    async def executemany(self, query: Any, *args: Any, **kwargs: Any) -> None:
        """Behaves like `AsyncCursor.executemany`."""
        await self._watched(query, super().executemany(query, *args, **kwargs))

    async def _watched(self, query: Any, executing: Any) -> Any:
        what = " ".join(str(query).split()[:3])
        if not what.startswith(("INSERT", "UPDATE", "DELETE")):
            return await executing
        try:
            self.reach(f"before {what}")
        except BaseException:
            executing.close()
            raise
        result = await executing
        self.reach(f"after {what}")
        return result


class WatchedStatementsSaver(WatchedPostgresSaver):
    """A saver in PostgreSQL that calls `reach` around its writes, and around each statement of a run's writes."""

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection[DictRow]]:
        async with super()._connection() as connection:
            connection.cursor_factory = WatchedCursor
            yield connection


@asynccontextmanager
async def open_watched(url: str, reach: Reach) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    """Open the saver of a database whose tables exist; `reach` is called before and after everything it writes."""
    if url.startswith("sqlite:///"):
        async with open_watched_saver(Path(url.removeprefix("sqlite:///"))) as saver:
            saver.setup()
            saver.reach = cast("WatchedConnection", saver.conn).reach = reach
            yield saver
        return
    async with open_pool(url, 8) as pool:
        postgres_saver = WatchedStatementsSaver(pool, strict_serializer())
        postgres_saver.reach = reach
        WatchedCursor.reach = staticmethod(reach)
        yield postgres_saver


Fault = Literal["kill", "cut", "raise"]


def fault_at(at: int, fault: Fault, url: str = "", reached: Callable[[str], None] = nothing) -> Reach:
    """A `reach` with a fault at one boundary.

    Args:
        at: The boundary, from 0; -1 if there is none.
        fault: `kill` the process; `cut` all connections to the database; or `raise` an error, then and before every
            later write.
        url: The database.
        reached: Called at every boundary.
    """
    count = 0

    def reach(what: str) -> None:
        nonlocal count
        number, count = count, count + 1
        reached(what)
        if number == at and fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if number == at and fault == "cut":
            cut_connections(url)
        if fault == "raise" and (number == at or (number > at >= 0 and what.startswith("before "))):
            raise WriteFailedError(what)

    return reach


def cut_connections(url: str) -> None:
    """Let the server end all connections to a database."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def send_input(folder: str, url: str, session_id: str, at: int, fault: Fault) -> None:
    """Send everything, with a fault at one boundary; the file `SESSION.reached` has a line for each boundary.

    Args:
        folder: Where the files are, and the log of the tools `SESSION.log`.
        url: The database.
        session_id: The session.
        at: The boundary.
        fault: The fault.
    """
    reached = os.open(Path(folder, f"{session_id}.reached"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(what: str) -> None:
        os.write(reached, f"{what}\n".encode())

    async def run() -> None:
        reach = fault_at(at, fault, url, note)
        async with open_watched(url, reach) as saver:
            with suppress(WriteFailedError, psycopg.Error, SessionLostError):
                await ask(Session(agent_over(saver, file_log(Path(folder, f"{session_id}.log"))), session_id))

    asyncio.run(run())


def send_again(folder: str, url: str, session_id: str) -> None:
    """Send everything again, without a fault; the file `SESSION.faults` then has what is wrong."""
    log = Path(folder, f"{session_id}.log")

    async def run() -> list[str]:
        async with open_watched(url, nothing) as saver:
            return await faults_of(Session(agent_over(saver, file_log(log)), session_id), lambda: read_log(log))

    Path(folder, f"{session_id}.faults").write_text(json.dumps(asyncio.run(run())))
