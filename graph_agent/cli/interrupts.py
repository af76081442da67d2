"""Handling of Ctrl-C: aborts the run, and guarantees that the process ends."""

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
from typing import TYPE_CHECKING

from graph_agent._internal.signal_handling import handling

if TYPE_CHECKING:
    from graph_agent.session.session import Session

STOPPED = 130
"""Exit status of a program ended by Ctrl-C."""
GRACE_S = 10.0
"""Maximum seconds from Ctrl-C to the end of the process, to settle the calls and close databases and servers."""
_RESPONSE_S = 3.0
"""Seconds in which the event loop must react to Ctrl-C; otherwise it counts as blocked."""


class Interrupts:
    """Handler of Ctrl-C while a command runs.

    The first Ctrl-C aborts the running session, or cancels the command if no session runs; a second one cancels the
    command. Neither works if code blocks the event loop or swallows the cancellation, so a thread ends the process
    `GRACE_S` seconds after the first Ctrl-C, or after `_RESPONSE_S` seconds if the loop does not react.
    """

    def __init__(self) -> None:
        self.count = 0
        """Number of Ctrl-C signals received."""
        self._loop = asyncio.get_running_loop()
        self._command = asyncio.current_task()
        self._session: Session | None = None
        self._aborting: asyncio.Task[bool] | None = None
        self._reacted = threading.Event()

    @classmethod
    @contextmanager
    def handled(cls) -> Iterator[Interrupts]:
        """Handle Ctrl-C for the current task within the context; does nothing outside the main thread."""
        interrupts = cls()
        if threading.current_thread() is not threading.main_thread():
            yield interrupts
            return
        with handling(signal.SIGINT, interrupts._interrupted):
            yield interrupts

    @contextmanager
    def aborting(self, session: Session) -> Iterator[None]:
        """Make the first Ctrl-C within the context abort this session."""
        self._session = session
        try:
            yield
        finally:
            self._session = None

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
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
        reason = "something blocks the event loop, such as a coroutine of a tool that makes a blocking call"
        if self._reacted.wait(_RESPONSE_S):
            time.sleep(GRACE_S)
            reason = f"something did not end within {GRACE_S:g} s"
        # Another thread may hold the lock of sys.stderr.
        os.write(2, f"Stopped at once: {reason}.\n".encode())
        os._exit(STOPPED)


def leave_interrupted() -> None:
    """Flush the output streams, and exit with `STOPPED` without waiting for threads.

    A thread may be blocked on standard input, whose lock the interpreter needs for a regular shutdown.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(STOPPED)
