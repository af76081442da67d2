"""Interrupts threads that read a model's reply; a cancellation of the waiting task does not reach them."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

blocking_replies: ContextVar[list[Callable[[], None]] | None] = ContextVar("graph_agent_blocking_replies", default=None)
"""Functions that interrupt the replies which threads are reading for the current request; None outside a request.

The sender of the request sets an empty list, and calls the functions if the request is cancelled.
"""


def announce_blocking(stop: Callable[[], None]) -> None:
    """Add a reply that this thread is about to read to those of the current request; does nothing outside a request.

    `stop` interrupts the reading; it is called from another thread, and must neither block nor raise.
    """
    if (stops := blocking_replies.get()) is not None:
        stops.append(stop)
