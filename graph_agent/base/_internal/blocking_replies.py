"""Interrupts replies that a thread reads: a cancellation of the task that waits for the thread does not reach it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class BlockingReplies:
    """The replies that threads have begun to read for one request."""

    def __init__(self) -> None:
        self._stops: list[Callable[[], None]] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Collect the replies that are announced in the block and in its threads."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def interrupt(self) -> None:
        """Interrupt all of them."""
        for stop in self._stops:
            stop()

    def add(self, stop: Callable[[], None]) -> None:
        """Add a reply; `stop` interrupts it from another thread, does not block, and does not raise."""
        self._stops.append(stop)


_current: ContextVar[BlockingReplies | None] = ContextVar("graph_agent_blocking_replies", default=None)


def announce(stop: Callable[[], None]) -> None:
    """Add a reply to those of the current request, if there is one; `stop` is that of `BlockingReplies.add`."""
    if (replies := _current.get()) is not None:
        replies.add(stop)
