"""Cancels the processing of one task's message, and reports during it that the task is working."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from langgraph.runtime import RunControl

from graph_agent.interfaces.server.a2a.updates import TaskReporter
from graph_agent.session.driver import RunHandle


class TaskRun:
    """The processing of one message of a task, until the task ends or asks a question."""

    def __init__(self) -> None:
        self.scope = RunHandle()
        """Handle of the run, by which it is aborted."""
        self.control = RunControl()
        """Makes the run stop at its next superstep boundary."""
        self.ended = asyncio.Event()
        """Set when the processing has ended."""

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called, before or after the run started."""
        return self.scope.aborted

    def cancel(self) -> None:
        """Abort the run; if it still waits for the conversation's lock, it is not started."""
        self.scope.abort()

    @asynccontextmanager
    async def acquire(self, lock: asyncio.Lock) -> AsyncIterator[bool]:
        """Wait for the conversation's lock, and hold it within the context; yields whether the run may start.

        False if the run was cancelled while it waited.
        """
        with self.scope.interruptible() as waiting:
            await lock.acquire()
        # Nothing was acquired then, and so nothing may be released.
        if waiting.cancelled_caught:
            yield False
            return
        try:
            yield not self.cancelled
        finally:
            lock.release()


@asynccontextmanager
async def heartbeats(reporter: TaskReporter, every_s: float) -> AsyncIterator[None]:
    """Within the context, send a `working` update whenever `every_s` seconds have passed without another update of
    `reporter`.

    A task of its own sends them, and is cancelled on exit.
    """

    async def beat() -> None:
        """Send a `working` update after each `every_s` seconds in which no other update was sent, until cancelled."""
        while True:
            sent = reporter.updates_sent
            await asyncio.sleep(every_s)
            # An update that was sent meanwhile has shown that the task is alive.
            if reporter.updates_sent == sent:
                await reporter.working()

    heartbeat = asyncio.create_task(beat())
    try:
        yield
    finally:
        heartbeat.cancel()
