"""A worker process of the PostgreSQL benchmark: `python -m benchmarks.postgres_worker DATABASE_URL LEASE_S`.

Orders are JSON lines on standard input; each gets a JSON line on standard output when it is carried out, with the CPU
time it took, in seconds:

- `{"do": "run", "variant", "turns", "sessions"}` runs sessions at the same time;
- `{"do": "hold", "session"}` starts an input, and replies when its tool runs, which does not end;
- `{"do": "resume", "session"}` resumes it as soon as no other process holds the session.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from benchmarks.work import Session as Run
from benchmarks.work import create_agent_session, graph_agent_session, own_saver
from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.core.state import postgres_locks
from graph_agent.errors import SessionBusyError
from graph_agent.storage.checkpoints.open import strict_serializer
from graph_agent.storage.checkpoints.postgres import SAVER_CONNECTIONS

CREATE_AGENT = "`create_agent`, LangGraph's saver"
STOCK = "graph-agent, LangGraph's saver"
OWN = "graph-agent, own saver"
WRITING = "graph-agent, own saver, a tool that writes"
VARIANTS = (CREATE_AGENT, STOCK, OWN, WRITING)
_AGAIN_S = 0.02


@asynccontextmanager
async def stock_postgres_saver(url: str) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    """Open LangGraph's saver on a pool of as many connections as this package's own."""
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(
        url, connection_class=AsyncConnection[DictRow], kwargs=options, min_size=1, max_size=SAVER_CONNECTIONS
    ) as pool:
        yield AsyncPostgresSaver(pool, serde=strict_serializer())


async def main(url: str, lease_s: int) -> None:
    """Carry out orders until standard input ends."""
    postgres_locks.LEASE_S = lease_s
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(own_saver(Path(), url))
        stock = await stack.enter_async_context(stock_postgres_saver(url))
        make: dict[str, Callable[[int], Run]] = {
            CREATE_AGENT: lambda turns: create_agent_session(turns, stock),
            STOCK: lambda turns: graph_agent_session(turns, stock),
            OWN: lambda turns: graph_agent_session(turns, own),
            WRITING: lambda turns: graph_agent_session(turns, own, effect="write"),
        }
        holding = list[asyncio.Task[Any]]()
        _reply(0.0)
        while line := await orders.readline():
            order, since = json.loads(line), time.process_time()
            if order["do"] == "run":
                run = make[order["variant"]](order["turns"])
                await asyncio.gather(*(run(uuid.uuid4().hex) for _ in range(order["sessions"])))
            elif order["do"] == "hold":
                holding.append(await _hold(own, order["session"]))
            else:
                await _resume(own, order["session"])
            _reply(time.process_time() - since)


def _reply(cpu: float) -> None:
    sys.stdout.write(json.dumps({"cpu": cpu}) + "\n")
    sys.stdout.flush()


async def _hold(saver: BaseCheckpointSaver[Any], session: str) -> asyncio.Task[Any]:
    runs = asyncio.Event()

    @tool
    async def work() -> str:
        """Work without end."""
        runs.set()
        await asyncio.Event().wait()
        return "done"

    calls = AIMessage("", tool_calls=[{"id": "1", "name": "work", "args": {}}])
    graph = create_graph_agent(ScriptedChatModel([calls]), tools=[work], checkpointer=saver)
    task = asyncio.create_task(Session(graph, session).run("go"))
    await runs.wait()
    return task


async def _resume(saver: BaseCheckpointSaver[Any], session: str) -> None:
    graph = create_graph_agent(ScriptedChatModel(["Answered."]), tools=[], checkpointer=saver)
    while True:
        try:
            await Session(graph, session).resume()
        except SessionBusyError:
            await asyncio.sleep(_AGAIN_S)
        else:
            return


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
