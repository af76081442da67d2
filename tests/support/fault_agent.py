"""An agent that can be stopped at every boundary; its tools keep their own log, and its model continues by the history.

Every possible fault point calls `reach` with a short text: each boundary of the saver, each stage of a tool, each
request to the model. `reach` may kill the process or cancel the run.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Annotated, Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from graph_agent import ScriptedChatModel
from graph_agent.base.sqlite_connection import BUSY_S
from graph_agent.core.state.fence import CheckpointFence
from graph_agent.persistence import strict_serializer
from graph_agent.storage.checkpoints.postgres import SharedPostgresSaver
from graph_agent.storage.checkpoints.postgres_fence import FencedWrite
from graph_agent.storage.checkpoints.sqlite_saver import SharedSqliteSaver

Reach = Callable[[str], None]
Log = Callable[[str, str], None]
"""Takes a stage of a call (`start`, `effect`, `end`), and the call's id."""
Wave = Sequence[tuple[str, str, Sequence[str]]]
"""Calls: id, tool, and the ids it needs."""

MARKS: dict[str, dict[str, Any]] = {
    "look": {"effect": "read"},
    "charge": {"effect": "write"},
    "put": {"effect": "write", "idempotent": True},
    "fail": {"effect": "write"},
    "ask": {"effect": "write"},
    "slow": {"effect": "read"},
    "pay": {"effect": "write"},
}

WAVES: list[Wave] = [
    [("w1-put", "put", ()), ("w1-charge", "charge", ())],
    [("w2-charge", "charge", ()), ("w2-look", "look", ("w2-charge",))],
    [("w3-charge", "charge", ())],
]
READING: list[Wave] = [
    [("w1-look", "look", ())],
    [("w2-look", "look", ()), ("w2-slow", "slow", ())],
    [("w3-look", "look", ()), ("w3-slow", "slow", ("w3-look",))],
]
ANSWER = "All is done."


def nothing(_: str) -> None:
    """Do not interrupt the run."""


def file_log(path: Path) -> Log:
    """A log in a file, which survives a crash of its writer."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(stage: str, id_: str) -> None:
        os.write(descriptor, f"{stage} {id_}\n".encode())

    return note


def read_log(path: Path) -> list[tuple[str, str]]:
    """The entries of a log, each `(stage, call id)`; empty if there is no file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [(stage, id_) for stage, _, id_ in (line.partition(" ") for line in lines)]


def logging_tools(log: Log, reach: Reach = nothing, *, blocking: bool = False) -> list[BaseTool]:
    """A tool of each kind of `MARKS`: `fail` raises, `ask` asks a person, `slow` takes its time."""
    return [_logging_tool(name, log, reach, blocking=blocking) for name in MARKS]


def _logging_tool(name: str, log: Log, reach: Reach, *, blocking: bool) -> BaseTool:
    def stage(what: str, id_: str) -> None:
        log(what, id_)
        reach(f"{what} of {id_}")

    async def run(call_id: Annotated[str, InjectedToolCallId]) -> str:
        stage("start", call_id)
        if name == "ask":
            interrupt(f"May {call_id} go on?")
        if name == "fail":
            raise ValueError(f"{call_id} cannot be")
        for _ in range(20 if name == "slow" else 1):
            await asyncio.sleep(0)
        stage("effect", call_id)
        await asyncio.sleep(0)
        stage("end", call_id)
        return f"done {call_id}"

    def run_blocking(call_id: Annotated[str, InjectedToolCallId]) -> str:
        for what in ("start", "effect", "end"):
            stage(what, call_id)
        return f"done {call_id}"

    way: dict[str, Any] = {"func": run_blocking} if blocking else {"coroutine": run}
    return StructuredTool.from_function(**way, name=name, description=f"{name}.", metadata=MARKS[name])


class GoesOn(ScriptedChatModel):
    """Plans the first of its waves that the history does not hold; answers when it holds all."""

    waves: list[Any] = WAVES
    structured: bool = False
    """Whether a plan is written as a structured one."""
    reach: Any = nothing

    def _reply(self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]) -> AIMessage:
        self.reach("a request to the model")
        script = ScriptedChatModel([self._next(messages)])
        reply = script._reply(messages, stop, kwargs)
        self.reach("a reply of the model")
        return reply

    def _next(self, messages: list[BaseMessage]) -> str:
        if messages[-1].text.startswith("Now provide your final response"):
            return ANSWER
        text = "".join(str(message) for message in messages)
        for index, wave in enumerate(self.waves):
            if f"'{wave[0][0]}'" not in text and f'"{wave[0][0]}"' not in text:
                last = index == len(self.waves) - 1
                return _structured(wave, last=last) if self.structured else _native(wave)
        return '{"status": "done"}' if self.structured else "No more actions."


def _structured(wave: Wave, *, last: bool) -> str:
    calls = [{"id": id_, "tool": name, "args": {}, "needs": list(needs)} for id_, name, needs in wave]
    return json.dumps({"status": "done" if last else "continue", "tools": calls})


def _native(wave: Wave) -> str:
    def arguments(name: str) -> dict[str, Any]:
        return {} if name in MARKS else {"task": "Go."}

    return json.dumps(
        {"tool_calls": [{"id": id_, "name": name, "arguments": arguments(name)} for id_, name, _ in wave]}
    )


class _Watched(BaseCheckpointSaver[Any]):
    """A saver that calls `reach` before and after each write."""

    reach: Reach = staticmethod(nothing)

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        what = f"checkpoint {metadata.get('step')} ({metadata.get('source')})"
        self.reach(f"before {what}")
        stored = await super().aput(config, checkpoint, metadata, new_versions)
        self.reach(f"after {what}")
        return stored

    async def aput_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        what = f"writes of {', '.join(channel for channel, _ in writes)}"
        self.reach(f"before {what}")
        await super().aput_writes(config, writes, task_id, task_path)
        self.reach(f"after {what}")


class WatchedSaver(_Watched, SharedSqliteSaver):
    """One that keeps sessions in SQLite."""


class WatchedConnection(sqlite3.Connection):
    """A connection that calls `reach` before and after each commit."""

    reach: Reach = staticmethod(nothing)

    def commit(self) -> None:
        writes = self.in_transaction
        if writes:
            self.reach("before a commit")
        super().commit()
        if writes:
            self.reach("after a commit")


@asynccontextmanager
async def open_watched_saver(file: Path) -> AsyncIterator[WatchedSaver]:
    """Open one on a file, and close it on leaving."""
    with closing(
        sqlite3.connect(file, timeout=BUSY_S, check_same_thread=False, factory=WatchedConnection)
    ) as connection:
        # No power failure is simulated; the system keeps the writes of a killed process.
        connection.execute("PRAGMA synchronous=OFF")
        saver = WatchedSaver(file, connection, strict_serializer())
        try:
            yield saver
        finally:
            await saver.aclose()


class WatchedPostgresSaver(_Watched, SharedPostgresSaver):
    """One that keeps sessions in PostgreSQL, and calls `reach_commit` before and after it commits queued writes."""

    reach_commit: Reach = staticmethod(nothing)

    async def _commit(self, fence: CheckpointFence, batch: Sequence[FencedWrite]) -> None:
        self.reach_commit("before a commit")
        await super()._commit(fence, batch)
        self.reach_commit("after a commit")


class WatchedMemorySaver(_Watched, InMemorySaver):
    """One that keeps sessions in memory."""


class WriteFailedError(Exception):
    """A write of a `WatchedMemorySaver` that `failing_at` lets fail."""


def failing_at(number: int) -> Reach:
    """A `reach` that lets the saver's write with a number, from 0, and every later one fail."""
    count = 0

    def reach(what: str) -> None:
        nonlocal count
        if what.startswith("before "):
            count += 1
            if count > number:
                raise WriteFailedError(what)

    return reach
