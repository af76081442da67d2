"""A process that kills itself in the first model call of an input, once the input is stored.

`URL INPUT PLANS`: the database, the number of the input, from 1, and whether the agent has tools (`1`), and so plans.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver
from tests.support.agents import echo
from tests.support.warm_process import warm_python

SESSION = "killed"


class KilledModel(ScriptedChatModel):
    """Kills its process in a request after the scripted ones."""

    saver: Any = None
    """The checkpointer, in which the input must be stored before."""
    answered: int = 0
    """Requests that are answered."""

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        await self._die()
        return await super()._agenerate(*args, **kwargs)

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        await self._die()
        async for chunk in super()._astream(*args, **kwargs):
            yield chunk

    async def _die(self) -> None:
        while len(self.requests) >= self.answered:
            newest = await self.saver.aget_tuple({"configurable": {"thread_id": SESSION}})
            values = newest.checkpoint["channel_values"] if newest is not None else {}
            if any(name.startswith("branch:to:") for name in values):
                os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.sleep(0.002)


async def killed(url: str, number: int, *, plans: bool = True) -> None:
    """Kill a process in the first model call of an input."""
    arguments = ["-m", "tests.support.killed_first_call", url, str(number), str(int(plans))]
    process = await asyncio.create_subprocess_exec(warm_python(), *arguments)
    assert await process.wait() == -signal.SIGKILL


async def main(url: str, number: int, *, plans: bool) -> None:
    """Run the inputs before, and begin the one in which the process ends."""
    async with open_saver(url) as saver:
        replies = [f"Answer {each}." for each in range(1, number)]
        model = KilledModel(responses=[*replies, "Never sent."], saver=saver, answered=len(replies))
        graph = create_graph_agent(model, tools=[echo] if plans else [], checkpointer=saver)
        for each in range(1, number + 1):
            await Session(graph, SESSION).run(f"question {each}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), plans=sys.argv[3] == "1"))
