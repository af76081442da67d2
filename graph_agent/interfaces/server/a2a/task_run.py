"""Cancels the processing of one task's message, and reports during it that the task is working."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from langgraph.runtime import RunControl

from graph_agent.interfaces.server.a2a.updates import TaskReporter
from graph_agent.session.driver import RunHandle


class TaskRun:
    """Processing of one message of a task, until the task ends or asks a question."""

    def __init__(self) -> None:
        self.scope = RunHandle()
        """Handle of the run, which aborts it."""
        self.control = RunControl()
        """Stops the run at the next superstep boundary."""
        self.ended = asyncio.Event()
        """Set when the message is processed."""

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

        Yields True with the lock, and False, without it, if the run was cancelled before.
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
    """Send a `working` update after each `every_s` seconds without another update, within the context."""

    async def beat() -> None:
        """Send the updates."""
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
