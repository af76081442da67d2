"""Jobs of the kill tests' processes: run a session until it is killed, or resume one that was."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from graph_agent import LoopConfig, RunResult, ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver, strict_serializer
from graph_agent.storage.checkpoints import postgres_fence, sqlite_writer
from tests.support.agents import asks
from tests.support.fault_agent import (
    ANSWER,
    MARKS,
    READING,
    WAVES,
    GoesOn,
    Reach,
    WatchedConnection,
    WatchedPostgresSaver,
    WatchedSaver,
    file_log,
    logging_tools,
    nothing,
    open_watched_saver,
    read_log,
)
from tests.support.fault_truth import before, untrue
from tests.support.input_faults import send_again, send_input  # noqa: F401 - jobs

_CONVERSATION = ("user_message", "agent_response")
ALL = -1
"""The value of `kill_at` for a run that is not killed."""


@asynccontextmanager
async def session_in(
    folder: Path, variant: dict[str, Any], reach: Reach = nothing, url: str = ""
) -> AsyncIterator[Session]:
    """The session that a folder keeps.

    Args:
        folder: Where its database and its tools' log are.
        variant: `structured` planning, and the `ledger`; `commits` if only commits are boundaries, and these are where
            something requires one; `reading` for calls that only read; the `input_id` of the input that is killed,
            `later` if another input comes before it.
        reach: Called at every boundary.
        url: A PostgreSQL database to keep the session in instead, its tables made.
    """
    waves = READING if variant.get("reading") else WAVES
    async with _saver(folder, url) as saver:
        if variant.get("commits"):
            sqlite_writer.MAX_DELAY_S = postgres_fence.MAX_DELAY_S = 3600.0
            if isinstance(saver, WatchedPostgresSaver):
                saver.reach_commit = reach
            else:
                cast("WatchedConnection", saver.conn).reach = reach
            reach = nothing
        saver.reach = reach
        tools = logging_tools(file_log(folder / "tools.log"), reach)
        graph = create_graph_agent(
            GoesOn(responses=[], waves=waves, structured=variant["structured"], reach=reach),
            tools=[tool for tool in tools if not variant.get("reading") or MARKS[tool.name]["effect"] == "read"],
            config=LoopConfig(
                max_steps=9,
                tool_calling="wave" if variant["structured"] else "native",
                effect_ledger=variant["ledger"],
            ),
            checkpointer=saver,
        )
        yield Session(graph, "s1")


@asynccontextmanager
async def _saver(folder: Path, url: str) -> AsyncIterator[WatchedSaver | WatchedPostgresSaver]:
    if url:
        async with AsyncConnectionPool(
            url,
            connection_class=AsyncConnection[DictRow],
            kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
            min_size=1,
            open=False,
        ) as pool:
            yield WatchedPostgresSaver(pool, strict_serializer())
        return
    async with open_watched_saver(folder / "sessions.db") as saver:
        saver.setup()
        yield saver


def warm_up() -> None:
    """Import and compile everything that a job needs, and leave no thread behind."""
    for structured in (False, True):
        graph = create_graph_agent(
            GoesOn(responses=[], structured=structured),
            tools=logging_tools(lambda *_: None),
            config=LoopConfig(max_steps=9, tool_calling="wave" if structured else "native"),
            checkpointer=InMemorySaver(serde=strict_serializer()),
        )
        asyncio.run(Session(graph, "s1").run("go"))


def run_to(folder: str, variant: dict[str, Any], kill_at: int, url: str = "") -> None:
    """Run one input, and be killed at a boundary.

    Args:
        folder: Where to keep the session. `reached` holds every boundary on the way, a line each.
        variant: See `session_in`.
        kill_at: Which boundary, from 0; `ALL` to live.
        url: See `session_in`.
    """
    reached = os.open(Path(folder, "reached"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    count, armed = 0, not variant.get("later")

    def reach(what: str) -> None:
        nonlocal count
        if not armed:
            return
        os.write(reached, f"{what}\n".encode())
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    async def run() -> None:
        nonlocal armed
        async with session_in(Path(folder), variant, reach, url) as session:
            if not armed:
                await session.run("before")
                armed = True
            await session.run("go", input_id=variant.get("input_id"))

    asyncio.run(run())


def go_on(folder: str, variant: dict[str, Any], ways: list[str], urls: dict[str, str] | None = None) -> None:
    """Resume a killed session in several ways, each on a copy; the file `faults` then lists the violations.

    Args:
        folder: Where the session is kept.
        variant: See `session_in`.
        ways: `resume`, new `input`, an `abort` and then new input, or the same input `again`, by its id.
        urls: Copies of its PostgreSQL database, one for each way; None where it is in a file.
    """
    faults = {}
    for how in ways:
        copy = Path(folder, how)
        copy.mkdir()
        for file in Path(folder).iterdir():
            if file.is_file():
                shutil.copy(file, copy)
        faults[how] = asyncio.run(_go_on(copy, variant, how, (urls or {}).get(how, "")))
    Path(folder, "faults").write_text(json.dumps(faults))


def hold(folder: str, url: str = "", forks: bool = False) -> None:
    """Run a session that waits in a tool: the file `entered` then contains this process's id, and `leave` releases it.

    Args:
        folder: Where these files are, and the database.
        url: Another database.
        forks: Whether the tool first forks a child that stays; the file `child` then holds its id.
    """
    entered, leave = Path(folder, "entered"), Path(folder, "leave")

    @tool
    async def stay() -> str:
        """Wait for the file `leave`."""
        if forks:
            _fork_child(Path(folder, "child"))
        entered.with_suffix(".new").write_text(str(os.getpid()))
        entered.with_suffix(".new").rename(entered)
        while not await asyncio.to_thread(leave.exists):
            await asyncio.sleep(0.005)
        return "let go"

    async def run() -> None:
        async with open_saver(url or f"sqlite:///{folder}/sessions.db") as saver:
            model = ScriptedChatModel([asks(("1", "stay", {})), "No more actions.", ANSWER])
            await Session(create_graph_agent(model, tools=[stay], checkpointer=saver), "s1").run("go")

    asyncio.run(run())


def _fork_child(pid_file: Path) -> None:
    child = os.fork()
    if child == 0:
        signal.pause()
    pid_file.write_text(str(child))


async def _go_on(folder: Path, variant: dict[str, Any], how: str, url: str) -> list[str]:
    killed = read_log(folder / "tools.log")
    async with session_in(folder, variant, url=url) as session:
        config: Any = {"configurable": {"thread_id": session.id}}
        graph = session.graph
        at: Any = graph.checkpointer
        stopped = await graph.aget_state(config)
        stored = before(stopped.values.get("messages", []), await at.aget_tuple(config))
        if how == "abort":
            # Only a started and unfinished session can be aborted.
            assert await session.abort() == ((await session.status()) == "ABORTED"), await session.status()
        results: list[RunResult] = []
        if how == "again":
            first = await session.run("go", input_id=variant["input_id"])
            results = [first, await session.run("go", input_id=variant["input_id"])]
        elif how in ("input", "abort"):
            await session.run("go on")
        elif not stopped.created_at:
            await session.run("go")  # nothing of the input was stored
        elif stopped.tasks:
            await session.resume()
        ended = await graph.aget_state(config)
    log = read_log(folder / "tools.log")
    messages = ended.values["messages"]
    faults = untrue(messages, ended.values["events"], log, stored, ledger=variant["ledger"])
    if (ended.values["status"], messages[-1].text) != ("COMPLETED", ANSWER):
        faults.append(f"it ended {ended.values['status']} with {messages[-1].text!r}")
    if how == "again":
        faults += [] if results[1] == results[0] else [f"two results: {results}"]
        conversation = [(e["type"], e["content"]) for e in ended.values["events"] if e["type"] in _CONVERSATION]
        earlier = [("user_message", "before"), ("agent_response", ANSWER)] if variant.get("later") else []
        whole = [*earlier, ("user_message", "go"), ("agent_response", ANSWER)]
        faults += [] if conversation == whole else [f"the conversation is {conversation}"]
        given = [message.text for message in messages if message.type == "human"]
        faults += [] if given == [text for type_, text in whole if type_ == "user_message"] else [f"inputs: {given}"]
    if how in ("resume", "again") and variant["ledger"]:
        begun = {id_ for _, id_ in killed} | stored.noted
        undone = [m for m in messages if m.type == "tool" and m.status == "error" and m.tool_call_id not in begun]
        # Calls that need a failed call are not run.
        faults += [f"{m.tool_call_id} was not run: {m.text}" for m in undone if "it needs" not in m.text]
    return faults
