"""A process that takes turns of sessions: `python -m tests.attack.worker DATABASE EFFECTS`.

Orders are JSON lines on standard input: `{"id", "do", "session", "text"}`. `do` is `run`, `resume`, `kill_at` (SIGKILL
itself at a point of the next turn: `text` is the number of the boundary and the seconds after it), `kill_in` (SIGKILL
itself in the phase `text` of a plan; see `tests.attack.overlap_model`) or `pages` (limit the SQLite database to `text`
pages). Orders run concurrently. Each writes a JSON line to standard output when it ends: its
`id`, and `answer`, `waits` (for a person), `done` or `error`. `TEST_ATTACK_CLOCK_S` shifts the process's wall
clock by some seconds.

For the text `pay …` the model calls a tool that takes effect, for `ask …` one that first asks a person, for `wave …`
three at once, else none. With fields of `LoopConfig` as JSON in `TEST_ATTACK_OVERLAP`, it also calls, for `look …`,
two tools that read and one that takes effect.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.types import interrupt

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.base import sqlite_connection
from graph_agent.persistence import open_saver, open_store
from graph_agent.storage.checkpoints import postgres_fence
from tests.attack.oracle import Effects, answer_to, call_id, calls_of
from tests.attack.overlap_model import AheadModel, OverlapModel, Phases
from tests.support.agents import asks

FOREIGN = "langgraph:"
"""Before an SQLite file: keep its sessions with LangGraph's own saver."""
_PAUSE_S = 2
"""Seconds after which a writer in PostgreSQL ends one that is paused, so that an attack with many pauses is short."""
_BUSY_S = 4
"""Seconds to wait for one that is paused in an SQLite transaction, which nothing but its end can end."""


class Kill:
    """Ends the process at a boundary, before or after each write of the saver or around each effect, or in a phase."""

    def __init__(self) -> None:
        self.phases = Phases()
        self._left = -1
        self._after_s = 0.0

    def set(self, boundary: int, after_s: float) -> None:
        """Choose the boundary, counted from now."""
        self._left, self._after_s = boundary, after_s

    def reach(self) -> None:
        """Pass a boundary."""
        if self._left == 0:
            threading.Timer(self._after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
        self._left -= 1

    def watch(self, saver: Any) -> None:
        """Make each write of a saver two boundaries."""

        def watched(write: Any) -> Any:
            async def reaching(*args: Any, **kwargs: Any) -> Any:
                self.reach()
                self.phases.write("before the plan is stored")
                stored = await write(*args, **kwargs)
                self.phases.write("the plan is stored")
                self.reach()
                return stored

            return reaching

        saver.aput, saver.aput_writes = watched(saver.aput), watched(saver.aput_writes)

    def watch_table(self, store: Any) -> None:
        """Make each write of a Store two phases."""
        write = store.aput

        async def entering(*args: Any, **kwargs: Any) -> None:
            self.phases.enter("before a count of the table is stored")
            await write(*args, **kwargs)
            self.phases.enter("a count of the table is stored")

        store.aput = entering


class TurnsModel(ScriptedChatModel):
    """Makes the calls of the newest text of the user, once, and then answers it."""

    def _reply(self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]) -> AIMessage:
        at = max(index for index, message in enumerate(messages) if message.type == "human")
        text = messages[at].text
        done = any(message.type == "tool" for message in messages[at:])
        name = "ask" if text.startswith("ask") else "charge"
        # An id of its own for each call: what is left open of one must not be taken for another's.
        calls = [(call_id(call), name, {"text": call}) for call in calls_of(text)]
        return ScriptedChatModel([asks(*calls) if calls and not done else answer_to(text)])._reply(
            messages, stop, kwargs
        )


def tools(effects: Effects, kill: Kill) -> list[BaseTool]:
    """The tools; each leaves time to be interrupted before and behind its effect."""

    async def take_effect(text: str, config: RunnableConfig) -> str:
        kill.reach()
        kill.phases.enter("the writing call begins")
        await asyncio.sleep(random.random() * 0.1)
        effects.append(config["configurable"]["thread_id"], text)
        kill.reach()
        await asyncio.sleep(random.random() * 0.1)
        return f"charged for {text}"

    @tool
    async def charge(text: str, config: RunnableConfig) -> str:
        """Charge."""
        return await take_effect(text, config)

    @tool
    async def ask(text: str, config: RunnableConfig) -> str:
        """Charge, when a person agrees."""
        interrupt(f"May I: {text}?")
        return await take_effect(text, config)

    return [charge, ask]


@asynccontextmanager
async def graph_over(url: str, effects: Effects, kill: Kill | None = None) -> AsyncIterator[Any]:
    """The agent, with its sessions in a database."""
    kill = kill or Kill()

    settings = json.loads(os.environ.get("TEST_ATTACK_OVERLAP", "{}"))

    def graph(saver: Any, store: Any = None) -> Any:
        kill.watch(saver)
        config = LoopConfig(finalize="direct", model_retries=0, **settings)
        model = _overlap_model(kill.phases, settings) if settings else TurnsModel(responses=[])
        offered = [*tools(effects, kill), *([kill.phases.look()] if settings else [])]
        return create_graph_agent(model, tools=offered, checkpointer=saver, store=store, config=config)

    if url.startswith(FOREIGN):
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        async with AsyncSqliteSaver.from_conn_string(url.removeprefix(FOREIGN)) as foreign:
            yield graph(foreign)
        return
    async with open_saver(url) as saver:
        if settings.get("predict") != "table":
            yield graph(saver)
            return
        async with open_store(url) as store:
            kill.watch_table(store)
            yield graph(saver, store)


def _overlap_model(phases: Phases, settings: dict[str, Any]) -> ScriptedChatModel:
    if settings.get("predict") is True:
        return AheadModel(phases, structured=settings.get("tool_calling") == "wave")
    return OverlapModel(phases, candidates=settings.get("candidates", 1), predicts="predict" in settings)


async def carry_out(graph: Any, kill: Kill, order: dict[str, Any]) -> dict[str, Any]:
    """Carry out one order; any error becomes the reply."""
    try:
        return await _carry_out(graph, kill, order)
    except Exception as error:  # noqa: BLE001 - the attack counts any error
        return {"error": f"{type(error).__name__}: {error}"}


async def _carry_out(graph: Any, kill: Kill, order: dict[str, Any]) -> dict[str, Any]:
    if order["do"] == "kill_at":
        boundary, after_s = order["text"].split()
        kill.set(int(boundary), float(after_s))
        return {"done": True}
    if order["do"] == "kill_in":
        kill.phases.choose(order["text"])
        return {"done": True}
    if order["do"] == "pages":
        saver = graph.checkpointer
        pages = f"PRAGMA max_page_count = {int(order['text'])}"
        await saver._writer.run(lambda: saver.conn.execute(pages), writes=False)
        return {"done": True}
    session = Session(graph, order["session"])
    result = await (session.run(order["text"]) if order["do"] == "run" else session.resume(order["text"] or None))
    if result.interrupts:
        return {"waits": True}
    return {"answer": result.answer} if result.status == "COMPLETED" else {"error": f"{result.status}: {result.error}"}


def shift_clock(seconds: float) -> None:
    """Shift this process's wall clock; the libraries look the functions up at each call."""
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + seconds
    time.time_ns = lambda: now_ns() + int(seconds * 1e9)


async def main(url: str, effects: Path) -> None:
    """Carry out orders until standard input ends."""
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    running: set[asyncio.Task[None]] = set()
    kill = Kill()

    async def one(graph: Any, order: dict[str, Any]) -> None:
        reply = await carry_out(graph, kill, order)
        sys.stdout.write(json.dumps({"id": order["id"], **reply}) + "\n")
        sys.stdout.flush()

    async with graph_over(url, Effects(effects), kill) as graph:
        sys.stdout.write(f"ready {os.getpid()}\n")
        sys.stdout.flush()
        while line := await orders.readline():
            task = asyncio.create_task(one(graph, json.loads(line)))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)


if __name__ == "__main__":
    postgres_fence.PAUSE_S, sqlite_connection.BUSY_S = _PAUSE_S, _BUSY_S
    shift_clock(float(os.environ.get("TEST_ATTACK_CLOCK_S", "0")))
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
