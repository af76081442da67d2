"""Blocking entry points that run coroutines on a background event loop."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import nullcontext
from contextvars import ContextVar, copy_context
from typing import Any, ParamSpec, TypeVar

import anyio

from graph_agent._internal.daemon_threads import DaemonExecutor
from graph_agent._internal.interruption import current_interruption
from graph_agent.errors import SyncInLoopError

P = ParamSpec("P")
T = TypeVar("T")

in_blocking_run: ContextVar[bool] = ContextVar("graph_agent_in_blocking_run", default=False)
"""True inside a node that a blocking entry point runs."""


def blocking(coroutine: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return a function that runs `coroutine` on the background loop and waits for it.

    The coroutine sees the caller's context variables. An exception in the waiting thread, such as `KeyboardInterrupt`,
    cancels it. So does Ctrl-C in the main thread, if that waits for this thread (see `interruptible`).
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
    """Await short, atomic work; a cancellation takes effect after it has finished.

    For example, LangGraph's SQLite store is unusable after an operation is cancelled between `BEGIN` and `COMMIT`.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            await asyncio.wait({task})
        raise


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
