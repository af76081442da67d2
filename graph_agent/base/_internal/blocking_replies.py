"""Interrupts threads that read a model's reply; a cancellation of the waiting task does not reach them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class BlockingReplies:
    """The replies that threads are reading for one request."""

    def __init__(self) -> None:
        self._stops: list[Callable[[], None]] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Add replies that are announced in the block, or in threads that it starts, to this object."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def interrupt(self) -> None:
        """Interrupt all replies that were added."""
        for stop in self._stops:
            stop()

    def add(self, stop: Callable[[], None]) -> None:
        """Add a reply; `stop` interrupts it, is called from another thread, and must neither block nor raise."""
        self._stops.append(stop)


_current: ContextVar[BlockingReplies | None] = ContextVar("graph_agent_blocking_replies", default=None)


def announce_blocking(stop: Callable[[], None]) -> None:
    """Add a reply to those of the current request; does nothing outside a request. See `BlockingReplies.add`."""
    if (replies := _current.get()) is not None:
        replies.add(stop)
