"""A process that kills itself during a wave, started by `test_foundations`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from langchain_core.tools import tool

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.persistence import open_saver
from tests.support.agents import asks, says, thread


@tool
async def quick() -> str:
    """Finish at once."""
    return "quick is done"


async def _die_when_stored(path: str) -> None:
    """Kill this process once the quick call's result is in the database."""
    import aiosqlite

    async with aiosqlite.connect(path) as db:
        while True:
            rows = await db.execute_fetchall("select value from writes where channel = 'messages'")
            if any(b"quick is done" in row[0] for row in rows):
                os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.sleep(0)


async def main(path: str) -> None:
    """Run a wave of a quick call and one that never ends."""

    @tool
    async def endless() -> str:
        """Never finish; wait for the moment to kill the process."""
        await _die_when_stored(path)
        return "unreachable"

    model = ScriptedChatModel([asks(("q", "quick", {}), ("e", "endless", {}))])
    async with open_saver(f"sqlite:///{path}") as saver:
        graph = create_graph_agent(model, tools=[quick, endless], checkpointer=saver)
        await graph.ainvoke(says("go"), thread())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
