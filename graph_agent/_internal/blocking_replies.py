"""Interrupts replies that a thread reads: a cancellation of the task that waits for the thread does not reach it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_replies: ContextVar[list[Callable[[], None]] | None] = ContextVar("graph_agent_blocking_replies", default=None)


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Yield a function that interrupts the replies which were announced in the block and its threads."""
    announced: list[Callable[[], None]] = []
    token = _replies.set(announced)

    def interrupt() -> None:
        for stop in announced:
            stop()

    try:
        yield interrupt
    finally:
        _replies.reset(token)


def announce(stop: Callable[[], None]) -> None:
    """Announce a reply that is read from now on; `stop` interrupts it from another thread, and does not raise."""
    if (announced := _replies.get()) is not None:
        announced.append(stop)
