"""Ctrl-C in a command that asks an agent: the run is stopped in good order, and the process ends soon in any case."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from graph_agent.session.session import Session

STOPPED = 130
"""Exit status of a program that Ctrl-C has ended."""
GRACE_S = 10.0
"""Seconds from Ctrl-C to the end of the process at most: to settle the calls, and to close databases and servers."""
_RESPONSE_S = 3.0
"""Seconds that the event loop has to react to Ctrl-C, before it counts as blocked."""


class Interrupts:
    """Handles Ctrl-C while a command works.

    The first Ctrl-C aborts the session that runs, or cancels the command where none does; a second one cancels the
    command. Neither helps where code blocks the event loop or swallows the cancellation, so a thread ends the process
    `GRACE_S` seconds after the first, or at once where the loop does not react.
    """

    def __init__(self) -> None:
        self.count = 0
        """How often Ctrl-C was pressed."""
        self._loop = asyncio.get_running_loop()
        self._command = asyncio.current_task()
        self._session: Session | None = None
        self._aborting: asyncio.Task[bool] | None = None
        self._reacted = threading.Event()

    @classmethod
    @contextmanager
    def handled(cls) -> Iterator[Interrupts]:
        """While within, Ctrl-C is handled for the running task; in another thread than the main one it is not."""
        interrupts = cls()
        if threading.current_thread() is not threading.main_thread():
            yield interrupts
            return
        before = signal.signal(signal.SIGINT, interrupts._interrupted)
        try:
            yield interrupts
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def aborting(self, session: Session) -> Iterator[None]:
        """While within, the first Ctrl-C aborts this session."""
        self._session = session
        try:
            yield
        finally:
            self._session = None

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        # Called between two instructions of the main thread, also where these block the event loop.
        self.count += 1
        if self.count == 1:
            threading.Thread(target=self._end_in_time, name="graph-agent interrupt", daemon=True).start()
        self._loop.call_soon_threadsafe(self._act, self.count)

    def _act(self, count: int) -> None:
        self._reacted.set()
        if count == 1 and self._session is not None:
            self._aborting = self._loop.create_task(self._session.abort())
        elif self._command is not None:
            self._command.cancel()

    def _end_in_time(self) -> None:
        why = "something blocks the event loop, such as a coroutine of a tool that makes a blocking call"
        if self._reacted.wait(_RESPONSE_S):
            time.sleep(GRACE_S)
            why = f"something did not end within {GRACE_S:g} s"
        # Another thread may hold the lock of sys.stderr.
        os.write(2, f"Stopped at once: {why}.\n".encode())
        os._exit(STOPPED)


def leave_interrupted() -> None:
    """End the process, which Ctrl-C has stopped, without waiting for threads; what was printed is written out.

    A thread may wait for a line on standard input, whose lock the interpreter would need to shut down.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(STOPPED)
