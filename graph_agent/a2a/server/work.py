"""A running task of this process: its cancellation, its lock and its heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from langgraph.runtime import RunControl

from graph_agent.a2a.server.updates import TaskReporter
from graph_agent.runs.run import RunScope


class TaskRun:
    """Processing of one message of a task, until the task ends or asks a question."""

    def __init__(self) -> None:
        self.scope = RunScope()
        """Scope of the run; aborts it."""
        self.control = RunControl()
        """Stops the run at the next step boundary."""
        self.ended = asyncio.Event()

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled, before or after the run started."""
        return self.scope.aborted

    def cancel(self) -> None:
        """Stop the run, or prevent its start if it waits for the lock."""
        self.scope.abort()

    @asynccontextmanager
    async def acquire(self, lock: asyncio.Lock) -> AsyncIterator[bool]:
        """Acquire the conversation's lock, and release it on exit.

        Args:
            lock: Held by the running task of a conversation.

        Yields:
            False if it was cancelled before the lock was acquired.
        """
        with self.scope.interruptible() as waiting:
            await lock.acquire()
        if waiting.cancelled_caught:
            yield False
            return
        try:
            yield not self.cancelled
        finally:
            lock.release()


@asynccontextmanager
async def heartbeats(reporter: TaskReporter, every_s: float) -> AsyncIterator[None]:
    """Send a `working` update after each period without another update, inside the block.

    Args:
        reporter: Sends the updates.
        every_s: Seconds without an update.
    """

    async def beat() -> None:
        while True:
            sent = reporter.updates_sent
            await asyncio.sleep(every_s)
            if reporter.updates_sent == sent:
                await reporter.working()

    heartbeat = asyncio.create_task(beat())
    try:
        yield
    finally:
        heartbeat.cancel()
