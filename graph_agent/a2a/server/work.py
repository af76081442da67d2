"""A task at work in this process: what stops its run and no other, and what says that it is alive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from langgraph.runtime import RunControl

from graph_agent.a2a.server.updates import TaskTeller
from graph_agent.runs.run import Around


class Work:
    """One message of a task, from when it is taken up to its end or its question."""

    def __init__(self) -> None:
        self.around = Around()
        """What its run is begun under."""
        self.control = RunControl()
        """Stops its run at the next boundary."""
        self.ended = asyncio.Event()

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled, begun or not."""
        return self.around.aborted

    def cancel(self) -> None:
        """Stop its run; one that waits for its turn is not begun."""
        self.around.abort()

    @asynccontextmanager
    async def in_turn(self, turn: asyncio.Lock) -> AsyncIterator[bool]:
        """Wait for the turn, and have it while within.

        Args:
            turn: Held by the one task of a conversation that runs.

        Yields:
            False when it was cancelled before it had the turn.
        """
        with self.around.interruptible() as waiting:
            await turn.acquire()
        if waiting.cancelled_caught:
            yield False
            return
        try:
            yield not self.cancelled
        finally:
            turn.release()


@asynccontextmanager
async def heartbeats(teller: TaskTeller, every_s: float) -> AsyncIterator[None]:
    """While within, say that the task is alive whenever nothing else was said for a while.

    Args:
        teller: Tells it.
        every_s: Seconds of silence.
    """

    async def beat() -> None:
        while True:
            said = teller.said
            await asyncio.sleep(every_s)
            if teller.said == said:
                await teller.working()

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
