"""Sessions of scripted agents: their history, and how they stop and continue."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.session import inbox_namespace
from tests.support.agents import thread
from tests.support.gates import nothing_under_way, until
from tests.support.warm_process import Process, start_python

ROOT = Path(__file__).parents[2]

GO_ON = ["No more actions.", "Here I am."]
"""Replies for one more input, see `takes_new_input`."""
NOT_RUN = "Not run: the run was stopped before this call had started."
NOT_KNOWN = (
    "Stopped before it had finished: the run was stopped. It is not known whether it took effect; check before "
    "repeating it."
)
READING = "Stopped before it had finished: the run was stopped. It only reads, so nothing was changed."


async def wait_for_results(talk: Session, count: int) -> None:
    """Wait until `count` calls of the running wave have a result in the checkpoint."""
    async with asyncio.timeout(120):
        while sum(bool(task.result) for task in (await talk.graph.aget_state(thread())).tasks) < count:
            await asyncio.sleep(0.002)


async def takes_new_input(talk: Session) -> bool:
    """Whether the session answers another input, and this process has no run left of the last."""
    idle = nothing_under_way()
    return idle and (await talk.run("still there?")).answer == "Here I am."


def new_session(model: ScriptedChatModel, *tools: Any, **options: Any) -> Session:
    """A session of a scripted agent, with a saver in memory unless the options give another."""
    options.setdefault("checkpointer", InMemorySaver())
    return Session(create_graph_agent(model, tools=list(tools), **options), "s1")


async def conversation_events(talk: Session) -> list[tuple[str, Any]]:
    """The `(type, content)` of the session's user messages, steering and answers."""
    events: list[Any] = [*await talk.events()]
    return [
        (event["type"], event["content"])
        for event in events
        if event["type"] in ("user_message", "steering", "agent_response")
    ]


async def stored_messages(talk: Session) -> list[Any]:
    """The messages in the session's last checkpoint."""
    state = await talk.graph.aget_state({"configurable": {"thread_id": talk.id}})
    return list(state.values["messages"])


async def put_note(
    store: BaseStore, session_id: str, kind: str, content: Any = "", *, at_ns: int | None = None
) -> None:
    """Send a note to a session as any client of its Store may, dated now unless `at_ns` has its time."""
    key = f"{time.time_ns() if at_ns is None else at_ns:020d}-{uuid.uuid4().hex}"
    await store.aput(inbox_namespace(session_id), key, {"kind": kind, "content": content})


async def noted(store: BaseStore, session_id: str) -> list[Any]:
    """The contents of the notes that a session has in its Store."""
    return [item.value["content"] for item in await store.asearch(inbox_namespace(session_id))]


@dataclass(frozen=True)
class SteeredProcess:
    """Another process that runs session `s1` until it is released, see `steered_run`."""

    process: Process
    folder: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()

    async def ended(self) -> tuple[bytes, bytes]:
        """Wait for the end; return what it has written to its standard output and its standard error."""
        await asyncio.to_thread(self.process.wait)
        return (self.folder / "out").read_bytes(), (self.folder / "errors").read_bytes()


async def start_steered_process(folder: Path, *arguments: str) -> SteeredProcess:
    """Start another process, and wait until its session's tool runs."""
    command = ["tests.support.steered_run", str(folder / "s.db"), *arguments]
    with (folder / "out").open("wb") as out, (folder / "errors").open("wb") as errors:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out.fileno(), "stderr": errors.fileno()}
        # The first start waits for the imports of the warm process.
        process = await asyncio.to_thread(start_python, command, cwd=ROOT, env=os.environ, **streams)
    log = folder / "log"
    await until(lambda: bool(log.exists() and log.read_text()) or process.poll() is not None)
    return SteeredProcess(process, folder)
