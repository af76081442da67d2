"""Interrupts threads that read a model's reply; a cancellation of the waiting task does not reach them."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar


class BlockingReplies:
    """The model replies that threads are reading for one request, and a way to interrupt them.

    Replies that are announced in a `with` block of this object, or in threads that the block starts, are added to it.
    """

    __slots__ = ("_stops", "_token")

    def __init__(self) -> None:
        self._stops: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        self._token = _current.set(self)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)

    def interrupt(self) -> None:
        """Call the `stop` function of all replies that were added."""
        for stop in self._stops:
            stop()

    def add(self, stop: Callable[[], None]) -> None:
        """Add a reply; `stop` interrupts it, is called from another thread, and must neither block nor raise."""
        self._stops.append(stop)


_current: ContextVar[BlockingReplies | None] = ContextVar("graph_agent_blocking_replies", default=None)


def announce_blocking(stop: Callable[[], None]) -> None:
    """Add a reply that this thread is about to read to those of the current request; does nothing outside a request.

    `stop` interrupts the reading; it is called from another thread, and must neither block nor raise.
    """
    if (replies := _current.get()) is not None:
        replies.add(stop)
