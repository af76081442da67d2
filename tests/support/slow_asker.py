"""A process that sends one input after another to a session, until it is killed: `URL FIRST`, the first input's number.

Each request to its model takes some milliseconds. It prints the number of each input that has ended.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections.abc import AsyncIterator
from typing import Any

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver
from tests.support.agents import echo

SESSION = "asked"


class SlowModel(ScriptedChatModel):
    """Answers each request after some milliseconds."""

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(random.uniform(0.005, 0.06))
        return await super()._agenerate(*args, **kwargs)

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        await asyncio.sleep(random.uniform(0.005, 0.06))
        async for chunk in super()._astream(*args, **kwargs):
            yield chunk


async def main(url: str, first: int) -> None:
    """Send inputs until the process ends."""
    async with open_saver(url) as saver:
        graph = create_graph_agent(SlowModel(responses=["Answer."], cycle=True), tools=[echo], checkpointer=saver)
        for number in itertools.count(first):
            await Session(graph, SESSION).run(f"question {number}")
            print(number, flush=True)  # noqa: T201 - the test reads it


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
