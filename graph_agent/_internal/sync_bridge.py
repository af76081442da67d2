"""Runs coroutines for blocking entry points on a background event loop."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import nullcontext
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import anyio

from graph_agent._internal.daemon_threads import DaemonExecutor
from graph_agent._internal.interruption import current_interruption
from graph_agent.errors import SyncInLoopError

P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger(__name__)

GRACE_S = 5.0
"""Seconds that stopped work may take to end; after them it is abandoned."""
_PAUSES = (0.7, 0.3)
"""Shares of `GRACE_S` after each cancellation of work that does not end. In the first, it can clean up, such as by
cancelling the task of a remote agent."""
_abandoned: set[asyncio.Future[Any]] = set()
"""Strong references, since an event loop keeps weak ones only."""

in_blocking_run: ContextVar[bool] = ContextVar("graph_agent_in_blocking_run", default=False)
"""True inside a node that a blocking entry point runs."""


def blocking(coroutine: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return a function that runs `coroutine` on the background loop and waits for it.

    The coroutine sees the caller's context variables. An exception in the waiting thread, such as `KeyboardInterrupt`,
    cancels it. Ctrl-C in the main thread cancels it too, if that waits for this thread (see `interruptible`).
    """

    @functools.wraps(coroutine)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        done: Future[T] = Future()
        tasks: list[asyncio.Task[None]] = []
        context = copy_context()
        context.run(in_blocking_run.set, True)
        loop = _background_loop()

        def start() -> None:
            tasks.append(
                loop.create_task(_settle(functools.partial(coroutine, *args, **kwargs), done), context=context)
            )
            # A task that is cancelled before its first step does not settle the future.
            tasks[0].add_done_callback(lambda _: done.cancel())

        def cancel() -> None:
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])

        interruption = current_interruption.get()
        with interruption.cancelling(cancel) if interruption is not None else nullcontext():
            loop.call_soon_threadsafe(start)
            try:
                return done.result()
            except BaseException:
                if not done.done():
                    cancel()
                raise

    return run


def refuse_running_loop(entry: str, instead: str) -> None:
    """Raise if the calling thread runs an event loop, which the call would block.

    Args:
        entry: The blocking method, for the message.
        instead: The asynchronous method to use.

    Raises:
        SyncInLoopError: In the thread of a running loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise SyncInLoopError(
        f"{entry} was called from the thread of a running event loop, which it would block while MCP sessions and "
        f"other clients of that loop are needed; use 'await {instead}(...)', or call it from another thread."
    )


async def await_uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Await short, atomic work; a cancellation takes effect after it has finished, or after `GRACE_S` seconds.

    For example, LangGraph's SQLite store is unusable after an operation is cancelled between `BEGIN` and `COMMIT`. So
    work that takes longer is not cancelled either; it continues unobserved.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await end_or_abandon(task, "An operation that must not be cancelled", cancels=False)
        raise


async def await_without_cancelling(task: asyncio.Future[Any]) -> None:
    """Wait for the end of a task. A cancellation of the waiting task takes effect at once and leaves the task alone."""
    waiter = asyncio.get_running_loop().create_future()

    def wake(_: asyncio.Future[Any]) -> None:
        if not waiter.done():
            waiter.set_result(None)

    task.add_done_callback(wake)
    await waiter


@dataclass(frozen=True, slots=True)
class _Exit:
    error: SystemExit


async def _contain_exit(work: Coroutine[Any, Any, T]) -> T | _Exit:
    try:
        return await work
    except SystemExit as error:
        return _Exit(error)


def start(work: Coroutine[Any, Any, T]) -> asyncio.Task[T | _Exit]:
    """Run work as a task. Its `SystemExit` is raised by `result_of`; asyncio would end the event loop with it."""
    return asyncio.create_task(_contain_exit(work))


def result_of(task: asyncio.Task[T | _Exit]) -> T:
    """Return the result of a finished task of `start`, or raise its exception."""
    result = task.result()
    if isinstance(result, _Exit):
        raise result.error
    return result


class TimeLimitError(TimeoutError):
    """Work was stopped at its time limit; the cause's traceback shows where it was."""


async def await_within(work: Coroutine[Any, Any, T], seconds: float | None, what: str) -> T:
    """Await work with a time limit, also if the work suppresses cancellations; see `end_or_abandon`.

    Args:
        seconds: The time limit; None for no limit.
        what: The work, as the subject of a sentence.

    Raises:
        TimeLimitError: If it has no result at the limit.
    """
    if seconds is None:
        return await work
    task = start(work)
    clock = asyncio.timeout(seconds)
    try:
        async with clock:
            await await_without_cancelling(task)
    except TimeoutError:
        if not clock.expired():
            raise
    finally:
        if not task.done():
            await end_or_abandon(task, what)
    if not task.done():
        raise TimeLimitError(f"stopped at its time limit of {seconds:g} s")
    try:
        return result_of(task)
    except asyncio.CancelledError as cancelled:
        if not clock.expired():
            raise
        raise TimeLimitError(f"stopped at its time limit of {seconds:g} s") from cancelled


async def end_or_abandon(task: asyncio.Future[Any], what: str, *, cancels: bool = True, spent_s: float = 0.0) -> None:
    """Wait for the end of stopped work, at most `GRACE_S` seconds; then leave it to itself, with a warning.

    Args:
        what: The work, as the subject of a sentence.
        cancels: Whether to cancel it, repeatedly because code may suppress a cancellation.
        spent_s: Seconds of `GRACE_S` that other stopped work of the same run has taken.
    """
    left_s = max(0.0, GRACE_S - spent_s)
    try:
        with anyio.CancelScope(shield=True):
            for share in _PAUSES:
                if cancels:
                    task.cancel()
                await asyncio.wait({task}, timeout=left_s * share)
                if task.done():
                    return
    finally:
        # A second cancellation of the caller ends the wait early.
        if not task.done():
            logger.warning("%s did not end after it was stopped, and is left to itself.", what)
            _abandoned.add(task)
            task.add_done_callback(_forget)


def _forget(task: asyncio.Future[Any]) -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()  # marks it as retrieved


async def await_thread_future(future: Future[T]) -> T:
    """Return the result of another thread's future, without yielding if it is done; a cancellation waits for it."""
    return future.result() if future.done() else await await_uninterrupted(_await_future(future))


async def _await_future(future: Future[T]) -> T:
    return await asyncio.wrap_future(future)


async def _settle(work: Callable[[], Coroutine[Any, Any, T]], done: Future[T]) -> None:
    try:
        result = await work()
    except asyncio.CancelledError:
        done.cancel()
        raise
    except BaseException as error:  # noqa: BLE001 - the caller receives it; a propagated SystemExit would end the loop
        done.set_exception(error)
    else:
        done.set_result(result)


@functools.cache
def _background_loop() -> asyncio.AbstractEventLoop:
    # One loop for the life of the process: later calls reuse the clients that a model opened in earlier ones.
    loop = asyncio.new_event_loop()
    loop.set_default_executor(DaemonExecutor())
    threading.Thread(target=loop.run_forever, name="graph-agent", daemon=True).start()
    return loop
