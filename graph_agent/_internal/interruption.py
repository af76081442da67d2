"""Handles Ctrl-C during a blocking run: it cancels the work of the threads, for which the main thread waits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError
from contextlib import closing, contextmanager, nullcontext
from contextvars import ContextVar
from types import FrameType
from typing import TypeVar, cast

T = TypeVar("T")


class _Interruption:
    """The work of one blocking run. It has no lock, because a signal handler must not wait for one."""

    def __init__(self) -> None:
        self._stopped = False
        self._cancels: set[Callable[[], object]] = set()

    @contextmanager
    def cancelling(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Within the context, `stop` calls `cancel`.

        Raises:
            CancelledError: If the run is stopped already.
        """
        self._cancels.add(cancel)
        try:
            if self._stopped:
                raise CancelledError
            yield
        finally:
            self._cancels.discard(cancel)

    def stop(self) -> None:
        """Cancel the work, and refuse further work."""
        self._stopped = True
        for cancel in self._cancels.copy():
            cancel()

    @contextmanager
    def on_signal(self) -> Iterator[None]:
        """Stop the work if the handler of SIGINT raises within the context; outside the main thread, do nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        _remove_ended_handlers()
        before = signal.getsignal(signal.SIGINT)
        if not callable(before):
            yield
            return
        handler = _Handler(before, self)
        signal.signal(signal.SIGINT, handler)
        try:
            yield
        finally:
            handler.ended = True
            # A stream that is dropped unfinished may be closed in another thread, which cannot set handlers.
            if threading.current_thread() is threading.main_thread():
                _remove_ended_handlers()


class _Handler:
    """Handler of SIGINT during a blocking run.

    Args:
        before: The handler that it replaces and calls.
        interruption: Stopped if that handler raises.
    """

    def __init__(self, before: Callable[[int, FrameType | None], object], interruption: _Interruption) -> None:
        self.before = before
        self.ended = False
        """Whether the run has ended; the handler stays installed under that of another run."""
        self._interruption = interruption

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            self.before(number, frame)
        except BaseException:
            self._interruption.stop()
            raise


def _remove_ended_handlers() -> None:
    """Restore the handler before the runs that have ended; streams may end in any order."""
    while isinstance(handler := signal.getsignal(signal.SIGINT), _Handler) and handler.ended:
        signal.signal(signal.SIGINT, handler.before)


current_interruption: ContextVar[_Interruption | None] = ContextVar("graph_agent_interruption", default=None)
"""That of the blocking run around; LangGraph copies it into the threads of the run's tasks."""


def interruptible(parts: Generator[T]) -> Generator[T]:
    """Yield the parts of a blocking stream such that Ctrl-C cancels its tasks in other threads; close it at the end.

    LangGraph's executor waits for its threads before `KeyboardInterrupt` leaves the stream, so a task that never
    returns would keep the program alive. Tasks may run while the consumer has a part, so the handler of the signal
    stays until the stream ends. A run inside a tool or delegate of another is stopped with that one.
    """
    interruption, outer, end = _Interruption(), current_interruption.get(), object()
    with (
        outer.cancelling(interruption.stop) if outer is not None else nullcontext(),
        interruption.on_signal(),
        closing(parts),
    ):
        while True:
            token = current_interruption.set(interruption)
            try:
                part = next(parts, end)
            finally:
                current_interruption.reset(token)
            if part is end:
                return
            yield cast("T", part)
