"""Stopping: the first SIGTERM lets runs come to their next boundary, a second one stops them at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
