"""A process that takes turns of sessions: `python -m tests.attack.worker DATABASE EFFECTS`.

Orders are JSON lines on standard input, `{"id", "do", "session", "text"}`; `do` is `run` or `resume`. They run
concurrently. Each writes a JSON line to standard output when it ends: its `id`, and `answer`, `waits` (for a person) or
`error`. `GRAPH_AGENT_ATTACK_CLOCK_S` shifts the process's wall clock by some seconds.

For the text `pay …` the model calls a tool that takes effect, for `ask …` one that first asks a person, else none.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
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
from graph_agent.persistence import open_saver
from tests.agents import asks
from tests.attack.oracle import Effects, answer_to

FOREIGN = "langgraph:"
"""Before an SQLite file: keep its sessions with LangGraph's own saver."""


class TurnsModel(ScriptedChatModel):
    """Does what the newest words of the user say, once, and then answers them."""

    def _reply(self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]) -> AIMessage:
        at = max(index for index, message in enumerate(messages) if message.type == "human")
        text = messages[at].text
        kind = text.partition(" ")[0]
        done = any(message.type == "tool" for message in messages[at:])
        # An id of its own for each turn: what is left open of one must not be taken for another's.
        call = asks((f"call-{text.replace(' ', '-')}", "charge" if kind == "pay" else "ask", {"text": text}))
        reply = call if kind in ("pay", "ask") and not done else answer_to(text)
        return ScriptedChatModel([reply])._reply(messages, stop, kwargs)


def tools(effects: Effects) -> list[BaseTool]:
    """The tools; each leaves time to be interrupted before and behind its effect."""

    async def take_effect(text: str, config: RunnableConfig) -> str:
        await asyncio.sleep(random.random() * 0.1)
        effects.append(config["configurable"]["thread_id"], text)
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
async def graph_over(url: str, effects: Effects) -> AsyncIterator[Any]:
    """The agent, with its sessions in a database."""

    def graph(saver: Any) -> Any:
        config = LoopConfig(finalize="direct", model_retries=0)
        return create_graph_agent(TurnsModel(responses=[]), tools=tools(effects), checkpointer=saver, config=config)

    if url.startswith(FOREIGN):
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        async with AsyncSqliteSaver.from_conn_string(url.removeprefix(FOREIGN)) as foreign:
            yield graph(foreign)
        return
    async with open_saver(url) as saver:
        yield graph(saver)


async def carry_out(graph: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Take one turn."""
    session = Session(graph, order["session"])
    try:
        result = await (session.run(order["text"]) if order["do"] == "run" else session.resume("yes"))
    except Exception as error:  # noqa: BLE001 - whatever it is, the attack counts it
        return {"error": f"{type(error).__name__}: {error}"}
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
    at_work: set[asyncio.Task[None]] = set()

    async def one(graph: Any, order: dict[str, Any]) -> None:
        reply = await carry_out(graph, order)
        sys.stdout.write(json.dumps({"id": order["id"], **reply}) + "\n")
        sys.stdout.flush()

    async with graph_over(url, Effects(effects)) as graph:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while line := await orders.readline():
            task = asyncio.create_task(one(graph, json.loads(line)))
            at_work.add(task)
            task.add_done_callback(at_work.discard)
        await asyncio.gather(*at_work)


if __name__ == "__main__":
    shift_clock(float(os.environ.get("GRAPH_AGENT_ATTACK_CLOCK_S", "0")))
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
