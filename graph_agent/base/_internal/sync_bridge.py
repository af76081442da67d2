"""Connects blocking code and event loops.

Blocking entry points run their coroutines on a background event loop, and Ctrl-C cancels them. Blocking code of third
parties runs in daemon threads, so that a call that hangs blocks neither its caller nor the exit of the process. Unlike
the threads of asyncio's default executor and AnyIO's workers, they are not joined when an event loop or the interpreter
ends: a call that is cancelled while it runs is abandoned, and its thread ends with the call or with the process.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from concurrent import futures
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import aclosing, contextmanager, nullcontext
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import anyio

from graph_agent.base.errors import AbandonedCallsError, SyncInLoopError

logger = logging.getLogger("graph_agent._internal.sync_bridge")

P = ParamSpec("P")
T = TypeVar("T")

MOST_ABANDONED = 256
"""Maximum number of abandoned calls that still run; while there are so many, no further blocking call is started."""
_IDLE_S = 30.0
"""Seconds after which an unused thread ends."""
older_cancellations: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()
"""Task → how often it had already been cancelled when the run inside it began. asyncio counts a cancellation for the
rest of a task's life, also one that the task has caught and survived."""


class DaemonThreads:
    """A pool of daemon threads that are started on demand and reused.

    Each running call has a thread of its own, because calls may wait for each other. Only abandoned calls are limited,
    because their number could otherwise grow forever in a long-lived process.
    """

    def __init__(self, most_abandoned: int = MOST_ABANDONED) -> None:
        self._most_abandoned = most_abandoned
        self._guard = threading.Lock()
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._threads = 0
        self._unfinished = 0
        self._abandoned = 0

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run a function without arguments in a thread.

        Return its future, which can be cancelled until the function begins. An idle thread is used, or a new one
        started.

        Raises:
            AbandonedCallsError: Too many abandoned calls still run.
            RuntimeError: No thread can be started.
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
        """Count a running call as abandoned until it returns, and cancel the blocking agent runs that it waits for.

        The call itself goes on. Does nothing if it is not running or is counted already.
        """
        with self._guard:
            if not call.running() or call.abandoned:
                return
            call.abandoned = True
            self._abandoned += 1
            cancels = [*call.cancels]
        for cancel in cancels:
            cancel()

    def _work(self) -> None:
        """Run queued calls until none has come for `_IDLE_S` seconds; the body of each thread."""
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


_thread = threading.local()
"""Its attribute `call` is the pool's call that the current thread runs; missing or None in other threads."""


class _Call(Future[Any]):
    """One function in the pool, as the future of its result."""

    def __init__(self, pool: DaemonThreads, function: Callable[[], Any]) -> None:
        super().__init__()
        self._pool = pool
        self._function: Callable[[], Any] | None = function
        self.abandoned = False
        self.cancels: set[Callable[[], object]] = set()
        """Functions that cancel the blocking runs for which this call waits."""

    @contextmanager
    def cancelling(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Call `cancel` if this call is abandoned during the block.

        Raises `CancelledError` if it is abandoned already.
        """
        self.cancels.add(cancel)
        try:
            if self.abandoned:
                raise CancelledError
            yield
        finally:
            self.cancels.discard(cancel)

    def cancel(self) -> bool:
        """Cancel the call and return True if it has not begun; else abandon it and return False. Called by asyncio."""
        if super().cancel():
            return True
        self._pool.abandon(self)
        return False

    def execute(self) -> Callable[[], None]:
        """Run the function; return a callable that stores its result or exception in the future.

        A `StopIteration` becomes a `RuntimeError`, because asyncio's futures accept none. Nothing is raised.
        """
        function, self._function = self._function, None
        assert function is not None
        _thread.call = self
        try:
            return partial(self.set_result, function())
        except StopIteration as error:
            # An asyncio future does not accept StopIteration.
            failure = RuntimeError(f"blocking code raised {error!r}")
            failure.__cause__ = error
            return partial(self.set_exception, failure)
        except BaseException as error:  # noqa: BLE001 - the exception belongs to the caller, SystemExit included
            return partial(self.set_exception, error)
        finally:
            _thread.call = None


_pool = DaemonThreads()


async def call_in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call blocking code in a daemon thread with the caller's context variables, and return its result.

    A cancellation takes effect at once; a call that has begun then continues, and its result is discarded.

    Raises:
        RuntimeError: The function raised `StopIteration`, or no thread can be started.
        AbandonedCallsError: Too many abandoned calls still run.
        BaseException: Any other exception of the function.
    """
    return await asyncio.wrap_future(_pool.submit(partial(copy_context().run, function, *args)))


class DaemonExecutor(ThreadPoolExecutor):
    """Default executor of an event loop that runs blocking jobs in daemon threads, which are not joined at the end.

    It is a `ThreadPoolExecutor` because asyncio accepts no other kind.

    Args:
        applies: Returns, when a job is submitted, whether it runs in a daemon thread.
        other: Runs the other jobs; None for this executor's own threads.
    """

    def __init__(self, applies: Callable[[], bool] = lambda: True, other: ThreadPoolExecutor | None = None) -> None:
        super().__init__(thread_name_prefix="asyncio")
        self._applies = applies
        self._other = other

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function as `ThreadPoolExecutor.submit` does, in a daemon thread while `_applies()` is true.

        Otherwise it runs in the executor that the program had set, or without one in a normal thread of this executor.
        Raises `AbandonedCallsError` as `DaemonThreads.submit` does.
        """
        if self._applies():
            return _pool.submit(partial(fn, *args, **kwargs))
        if self._other is not None:
            return self._other.submit(fn, *args, **kwargs)
        return super().submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down as `ThreadPoolExecutor.shutdown`, the other executor as well; daemon threads are not joined."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        if self._other is not None:
            self._other.shutdown(wait, cancel_futures=cancel_futures)


def _reset_pool() -> None:
    """Replace the pool by an empty one, in a forked process."""
    global _pool  # noqa: PLW0603 - threads do not survive a fork, so a child process needs its own pool
    _pool = DaemonThreads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_pool)


GRACE_S = 5.0
"""Seconds that stopped work may take to end before it is abandoned."""
_PAUSES = (0.7, 0.3)
"""Shares of `GRACE_S` that are waited after the first and the second cancellation.

In the first, work can clean up, e.g. cancel a remote task.
"""
_abandoned: set[asyncio.Future[Any]] = set()
"""Abandoned tasks, kept here because event loops keep only weak references."""

in_blocking_run: ContextVar[bool] = ContextVar("graph_agent_in_blocking_run", default=False)
"""True in code of a run that was started by a blocking entry point."""


def blocking(coroutine: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return a blocking function that runs `coroutine` on the background event loop and waits for its result.

    The coroutine has the caller's context variables. An exception in the waiting thread, e.g. `KeyboardInterrupt`,
    cancels the coroutine and waits for its end, at most `2 * GRACE_S` seconds. If the waiting thread runs a call of
    `call_in_thread`, the cancellation of that call also cancels the coroutine; one before the start raises
    `CancelledError`.
    """

    @functools.wraps(coroutine)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with _in_background(partial(coroutine, *args, **kwargs)) as done:
            return done.result()

    return run


def blocking_parts(source: AsyncGenerator[T]) -> Generator[T]:
    """Yield the items of an async generator that runs on the background loop, all in one task.

    The generator is suspended while the caller processes an item. Closing this iterator closes the generator and waits
    for its end, except in a thread with a running event loop, e.g. when garbage is collected there. Exceptions in the
    waiting thread act as in `blocking`.
    """
    end = object()
    parts: SimpleQueue[Any] = SimpleQueue()
    goes_on: asyncio.Queue[bool] = asyncio.Queue()

    async def pump() -> None:
        async with aclosing(source):
            async for part in source:
                parts.put(part)
                if not await goes_on.get():
                    return

    def resume(value: bool) -> None:
        background_loop().call_soon_threadsafe(goes_on.put_nowait, value)

    with _in_background(pump) as done:
        done.add_done_callback(lambda _: parts.put(end))
        while (part := parts.get()) is not end:
            try:
                yield part
            except GeneratorExit:
                resume(False)
                if running_loop() is None:
                    done.result()
                return
            resume(True)
        done.result()


@contextmanager
def _in_background(work: Callable[[], Coroutine[Any, Any, T]]) -> Iterator[Future[T]]:
    """Run a coroutine on the background loop during the block; yield the future of its result.

    If the block raises before the coroutine has ended, the coroutine is cancelled and its end awaited, at most `2 *
    GRACE_S` seconds.
    """
    done: Future[T] = Future()
    tasks: list[asyncio.Task[None]] = []
    context = copy_context()
    context.run(in_blocking_run.set, True)
    loop = background_loop()

    def start() -> None:
        tasks.append(loop.create_task(_settle(work, done), context=context))
        # A task that is cancelled before its first step does not settle the future.
        tasks[0].add_done_callback(lambda _: done.cancel())

    def cancel() -> None:
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])

    call: _Call | None = getattr(_thread, "call", None)
    with call.cancelling(cancel) if call is not None else nullcontext():
        loop.call_soon_threadsafe(start)
        try:
            yield done
        except BaseException:
            if not done.done():
                cancel()
                futures.wait([done], 2 * GRACE_S)
            raise


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread; None if none does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def refuse_running_loop(entry: str, instead: str, among: Sequence[Any] | None = None) -> None:
    """Raise `SyncInLoopError` if an event loop runs in this thread, because a blocking call would stop that loop.

    Args:
        entry: Name of the blocking entry point, for the message.
        instead: Name of the asynchronous one to use in its place.
        among: Event loops that must not be blocked; None for all.
    """
    loop = running_loop()
    if loop is None or (among is not None and loop not in among):
        return
    raise SyncInLoopError(
        f"{entry} was called from the thread of a running event loop, which it would block while MCP sessions and "
        f"other clients of that loop are needed; use 'await {instead}(...)', or call it from another thread."
    )


async def await_uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Await short work that must not be interrupted, and return its result.

    A cancellation of the caller takes effect after the work, or after `GRACE_S` seconds, when the work continues by
    itself. For example, LangGraph's SQLite store is unusable after an operation was cancelled between `BEGIN` and
    `COMMIT`.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await end_or_abandon(task, "An operation that must not be cancelled", cancels=False)
        raise


@dataclass(frozen=True, slots=True)
class _Exit:
    """A `SystemExit` as the result of a task, because asyncio would end the event loop if a task raised it."""

    error: SystemExit


StartedTask: TypeAlias = asyncio.Task[T | _Exit]
"""A task made by `start`; `result_of` returns its result."""


async def _contain_exit(work: Awaitable[T], ended: asyncio.Future[None] | None = None) -> T | _Exit:
    """Await work and return its result, or its `SystemExit` as `_Exit`; then mark the future `ended`, if not None, as
    done.
    """
    try:
        return await work
    except SystemExit as error:
        return _Exit(error)
    finally:
        # Here, and not in a callback of the task, which would cost one more iteration of the event loop.
        wake(ended)


def wake(ended: asyncio.Future[None] | None, _: object = None) -> None:
    """Mark a future as done, unless it is None or done already."""
    if ended is not None and not ended.done():
        ended.set_result(None)


def start(work: Coroutine[Any, Any, T]) -> tuple[StartedTask[T], asyncio.Future[None]]:
    """Run a coroutine as a task; return the task, and a future that is done when the task ends.

    Cancelling the future does not cancel the task. A `SystemExit` of the work is stored and raised by `result_of`,
    because asyncio would end the event loop with it.
    """
    ended = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(_contain_exit(work, ended))
    # A task that is cancelled before its first step never runs.
    task.add_done_callback(partial(wake, ended))
    return task, ended


def result_of(task: StartedTask[T]) -> T:
    """Return the result of a finished task made by `start`, or raise its exception, a `SystemExit` included."""
    result = task.result()
    if isinstance(result, _Exit):
        raise result.error
    return result


async def await_in_task(work: Awaitable[T], context: Context) -> T:
    """Await work in a new task with the given context variables, and return its result.

    A `SystemExit` is raised here.
    """
    task = asyncio.create_task(_contain_exit(work), context=context)
    await task
    return result_of(task)


class TimeLimitError(TimeoutError):
    """Raised for work that was stopped at its time limit; the traceback of its cause shows where the work was."""


async def await_within(work: Coroutine[Any, Any, T], seconds: float | None, what: str) -> T:
    """Await work with a time limit, and return its result; the limit also holds if the work suppresses cancellations.

    At the limit, or when the caller is cancelled, the work is cancelled, and left running if it does not end within
    `GRACE_S` seconds. A result that it still returns in this time is returned, and an exception of it is raised.

    Args:
        seconds: The limit; None to await the work directly, so that a cancellation of the caller waits for its end.
        what: The work as the subject of a sentence, for the log.

    Raises:
        TimeLimitError: The work had no result at the limit, and then was cancelled or did not end.
    """
    if seconds is None:
        return await work
    task, ended = start(work)
    # Until it is due, even a cancelled timer keeps its context, and with this one the session's history.
    limit = asyncio.get_running_loop().call_later(seconds, wake, ended, context=Context())
    try:
        await ended
        is_over = not task.done()
    finally:
        limit.cancel()
        if not task.done():
            await end_or_abandon(task, what)
    if not task.done():
        raise TimeLimitError(f"stopped at its time limit of {seconds:g} s")
    try:
        return result_of(task)
    except asyncio.CancelledError as cancelled:
        if not is_over:
            raise
        raise TimeLimitError(f"stopped at its time limit of {seconds:g} s") from cancelled


async def end_or_abandon(task: asyncio.Future[Any], what: str, *, cancels: bool = True, spent_s: float = 0.0) -> None:
    """Wait for the end of work that is being stopped, at most `GRACE_S` seconds, even if the caller is in a cancelled
    scope.

    After that, log a warning and let the work run on. A cancellation of the caller ends the wait early, with the same
    warning.

    Args:
        task: The work.
        what: The work as the subject of a sentence, for the log.
        cancels: Whether to cancel it, twice if needed, because code may suppress a cancellation.
        spent_s: Seconds already spent in waiting for other stopped work of the same run, which are subtracted.
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


def is_cancelled(task: asyncio.Task[Any] | None) -> bool:
    """Whether a task is cancelled; of a task with a run, only cancellations since the run began count.

    False for None.
    """
    return task is not None and task.cancelling() > older_cancellations.get(task, 0)


def _forget(task: asyncio.Future[Any]) -> None:
    """Release an abandoned task that has ended, and mark its exception as read, so that asyncio does not log it."""
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()  # marks it as retrieved


async def await_thread_future(future: Future[T]) -> T:
    """Wait for a future of another thread and return its result.

    A cancellation takes effect when the future is done, or after `GRACE_S` seconds. Does not yield to the event loop if
    the future is done already.
    """
    return future.result() if future.done() else await await_uninterrupted(_await_future(future))


async def _await_future(future: Future[T]) -> T:
    return await asyncio.wrap_future(future)


async def _settle(work: Callable[[], Coroutine[Any, Any, T]], done: Future[T]) -> None:
    """Await a coroutine and store its result, exception or cancellation in `done`."""
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
def background_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop on which blocking entry points run agents; the first call starts it in a daemon thread."""
    # One loop for the life of the process: later calls reuse the clients that a model opened in earlier ones.
    loop = asyncio.new_event_loop()
    loop.set_default_executor(DaemonExecutor())
    threading.Thread(target=loop.run_forever, name="graph-agent", daemon=True).start()
    return loop
