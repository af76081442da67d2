"""Stopping: the first SIGTERM lets runs come to their next boundary, a second one stops them at once."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_RESPONSE_S = 5.0
"""Seconds beyond the time to drain after which a loop that has not reacted to the signal counts as blocked."""


class Drainable(Protocol):
    """What is under way in a server."""

    @property
    def draining(self) -> bool:
        """Whether it was told to stop."""
        ...

    def drain(self) -> None:
        """Begin nothing more, and let what is under way stop at its next boundary; called by a signal's handler."""
        ...

    def cancel(self) -> None:
        """Stop everything now."""
        ...


@contextmanager
def draining_on_sigterm(
    runs: Drainable, drain_s: float, *, enabled: bool, is_second: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Stop runs when the process is asked to stop; the handlers that were there are called too.

    Where the event loop does not react at all, because a coroutine makes a blocking call, the process is ended when
    the time is up.

    Args:
        runs: What is under way.
        drain_s: Seconds that runs may take to their next boundary.
        enabled: Whether to do anything; only the main thread can.
        is_second: Whether a signal behind the first is somebody's second wish, and not the first come twice, as where
            both a parent process and a terminal pass it on.
    """
    if not enabled:
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def stop(number: int, frame: FrameType | None) -> None:
        if runs.draining:
            if is_second():
                loop.call_soon_threadsafe(runs.cancel)
        else:
            runs.drain()
            _end_if_blocked(loop, drain_s + _RESPONSE_S)
            loop.call_soon_threadsafe(loop.call_later, drain_s, runs.cancel)
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number in _SIGNALS:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_if_blocked(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    """End the process unless the loop runs a callback within some seconds."""
    reacted = threading.Event()
    loop.call_soon_threadsafe(reacted.set)

    def wait() -> None:
        if not reacted.wait(seconds):
            os.write(2, b"Stopped at once: something blocks the event loop, such as a tool's blocking coroutine.\n")
            os._exit(1)

    threading.Thread(target=wait, name="graph-agent drain", daemon=True).start()
