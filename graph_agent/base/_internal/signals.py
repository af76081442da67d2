"""Shuts down gracefully: the first SIGTERM lets runs reach their next boundary, a second one cancels them."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Protocol

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_RESPONSE_S = 5.0
"""Seconds after the drain time; an event loop that has not reacted to the signal by then counts as blocked."""


class Drainable(Protocol):
    """The running work of a server, which can be ended in two steps: `drain` lets it end by itself, `cancel` ends
    it."""

    @property
    def draining(self) -> bool:
        """Whether `drain` was called."""
        ...

    def drain(self) -> None:
        """Accept no new work, and let running work end at its next boundary; called in a signal handler."""

    def cancel(self) -> None:
        """Cancel all running work now."""


@contextmanager
def drain_on_sigterm(
    runs: Drainable, drain_s: float, *, enabled: bool, is_second: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Drain the server's runs at the first SIGTERM or SIGINT during the block.

    Handlers installed before are called as well, and restored at the end of the block. After `drain_s` seconds, or at a
    second signal, runs that have not ended are cancelled; if `runs` drain already, the first signal counts as a second
    one. If the event loop does not react, because a coroutine blocks
    it, the process exits with code 1 five seconds after the drain time.

    Args:
        runs: The work to drain.
        drain_s: Seconds that runs have to reach their next boundary.
        enabled: False to do nothing; required outside the main thread.
        is_second: Returns whether a later signal is a new one, not a duplicate that a parent process and a terminal
            both forwarded.
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
    """Exit the process with code 1 and a message on standard error, unless the loop runs a callback within `seconds`.

    Returns at once; a thread waits.
    """
    reacted = threading.Event()
    loop.call_soon_threadsafe(reacted.set)

    def wait() -> None:
        if not reacted.wait(seconds):
            os.write(2, b"Stopped at once: something blocks the event loop, such as a tool's blocking coroutine.\n")
            # `sys.exit` would end this thread only.
            os._exit(1)

    threading.Thread(target=wait, name="graph-agent drain", daemon=True).start()


@contextmanager
def handling(number: signal.Signals, handler: Callable[[int, FrameType | None], Any] | int | None) -> Iterator[None]:
    """Call `handler` for a signal during the block, and make the signal wake the running event loop.

    With `signal.signal` alone, and so with `asyncio.run`, the loop sleeps on if the signal arrives right before it
    waits for events. The handler runs between two instructions of the main thread, even if these block the event loop.
    The former handler is restored at the end.

    Raises:
        ValueError: The caller is not in the main thread.
    """
    loop = asyncio.get_running_loop()
    before = signal.getsignal(number)
    with suppress(NotImplementedError):  # on Windows, where signals always wake the loop
        # The loop sets the interpreter's wakeup descriptor; its handler is replaced in the next line.
        loop.add_signal_handler(number, lambda: None)
    signal.signal(number, handler)
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            loop.remove_signal_handler(number)
        signal.signal(number, before)
