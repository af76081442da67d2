"""Runs blocking third-party code in daemon threads; a call that hangs blocks neither its caller nor process exit.

asyncio's default executor and AnyIO's workers are joined when an event loop or the interpreter ends. These threads are
not: a call that is cancelled while it runs is abandoned, and its thread ends with the call or with the process.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from graph_agent.errors import AbandonedCallsError

T = TypeVar("T")

MOST_ABANDONED = 256
"""Abandoned calls that may run at the same time. Beyond this number no further blocking call is started."""
_IDLE_S = 30.0
"""Seconds after which an idle thread ends."""


class DaemonThreads:
    """A pool of daemon threads, started on demand and reused.

    There is a thread for every running call, because calls may wait for each other. Only abandoned calls are limited:
    without a limit their number could grow forever in a long-lived process.

    Args:
        most_abandoned: Maximum number of abandoned calls.
    """

    def __init__(self, most_abandoned: int = MOST_ABANDONED) -> None:
        self._most_abandoned = most_abandoned
        self._guard = threading.Lock()
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._threads = 0
        self._unfinished = 0
        self._abandoned = 0

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run a function in one of the threads; it does not run if the future is cancelled before it starts.

        Raises:
            AbandonedCallsError: If too many abandoned calls still run.
            RuntimeError: If the system cannot start another thread.
        """
        with self._guard:
            if self._abandoned >= self._most_abandoned:
                raise AbandonedCallsError(
                    f"{self._abandoned} blocking calls that were cancelled or timed out still run, so no further one "
                    "is started. Give the blocking code time limits of its own, or restart the process."
                )
            if self._unfinished >= self._threads:
                threading.Thread(target=self._work, name="graph-agent blocking call", daemon=True).start()
                self._threads += 1
            self._unfinished += 1
            call = _Call(self, function)
            self._calls.put(call)
        return call

    def abandon(self, call: _Call) -> None:
        """Count a running call without a waiter as abandoned until it returns."""
        with self._guard:
            if call.running() and not call.abandoned:
                call.abandoned = True
                self._abandoned += 1

    def _work(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=_IDLE_S)
            except Empty:
                with self._guard:
                    if self._unfinished >= self._threads:
                        continue  # a call is being queued for this thread
                    self._threads -= 1
                    return
            if call.set_running_or_notify_cancel():
                settle = call.execute()
                with self._guard:
                    self._unfinished -= 1
                    self._abandoned -= call.abandoned
                    call.abandoned = True  # a later `abandon` must not count it again
                settle()
                del settle
            else:
                with self._guard:
                    self._unfinished -= 1
            # An idle thread must not keep its last call alive.
            del call


class _Call(Future[Any]):
    def __init__(self, pool: DaemonThreads, function: Callable[[], Any]) -> None:
        super().__init__()
        self._pool = pool
        self._function: Callable[[], Any] | None = function
        self.abandoned = False

    def cancel(self) -> bool:
        """See `Future.cancel`; asyncio calls it when the waiting task is cancelled."""
        if super().cancel():
            return True
        self._pool.abandon(self)
        return False

    def execute(self) -> Callable[[], None]:
        """Run the function and return a callable that settles the future."""
        function, self._function = self._function, None
        assert function is not None
        try:
            return partial(self.set_result, function())
        except StopIteration as error:
            # An asyncio future does not accept StopIteration.
            failure = RuntimeError(f"blocking code raised {error!r}")
            failure.__cause__ = error
            return partial(self.set_exception, failure)
        except BaseException as error:  # noqa: BLE001 - the exception belongs to the caller, SystemExit included
            return partial(self.set_exception, error)


_pool = DaemonThreads()


async def call_in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call blocking code in a daemon thread, with the caller's context variables.

    A cancellation takes effect at once. A call that has started continues, and its result is dropped.

    Raises:
        AbandonedCallsError: If too many abandoned calls still run.
        BaseException: Any exception of the function; a RuntimeError replaces a StopIteration.
    """
    return await asyncio.wrap_future(_pool.submit(partial(copy_context().run, function, *args)))


class DaemonExecutor(ThreadPoolExecutor):
    """An event loop's default executor: daemon threads for some of its jobs, another executor for the rest.

    It is a `ThreadPoolExecutor` because asyncio takes no other kind.

    Args:
        applies: Called on submission in the submitting thread; whether a daemon thread runs the job.
        other: Runs the other jobs; None for threads of this executor.
    """

    def __init__(self, applies: Callable[[], bool] = lambda: True, other: ThreadPoolExecutor | None = None) -> None:
        super().__init__(thread_name_prefix="asyncio")
        self._applies = applies
        self._other = other

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `ThreadPoolExecutor.submit`."""
        if self._applies():
            return _pool.submit(partial(fn, *args, **kwargs))
        if self._other is not None:
            return self._other.submit(fn, *args, **kwargs)
        return super().submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `ThreadPoolExecutor.shutdown`; daemon threads are not joined."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        if self._other is not None:
            self._other.shutdown(wait, cancel_futures=cancel_futures)


def _reset_pool() -> None:
    global _pool  # noqa: PLW0603 - threads do not survive a fork, so a child process needs its own pool
    _pool = DaemonThreads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_pool)
