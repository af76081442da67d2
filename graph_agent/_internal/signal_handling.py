"""A handler for a signal that also wakes the event loop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any


@contextmanager
def handling(number: signal.Signals, handler: Callable[[int, FrameType | None], Any] | int | None) -> Iterator[None]:
    """Call a handler for a signal within the context, and make the signal wake the running event loop.

    `signal.signal` alone, and so `asyncio.run`, leaves the loop asleep if the signal arrives immediately before the
    loop waits for events.

    Args:
        number: The signal.
        handler: See `signal.signal`; it is called between two instructions of the main thread, even if these block the
            event loop.

    Raises:
        ValueError: Outside the main thread.
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
