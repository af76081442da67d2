"""Runs an agent on the event loop of its own thread, so that its blocking code cannot block the terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from graph_agent.base._internal.signals import handling
from graph_agent.interfaces.cli.typed_keys import show_typed_keys

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from graph_agent.session.compiled import CompiledAgentGraph
    from graph_agent.session.results import Part
    from graph_agent.session.session import Session


T = TypeVar("T")

STOPPED = 130
"""Exit status of a program ended by Ctrl-C."""
EXIT_S = 10.0
"""Maximum seconds from Ctrl-C to the end of the process, to settle the calls and close databases and servers."""
_RESPONSE_S = 3.0
"""Seconds in which the event loop must react to Ctrl-C; otherwise it counts as blocked."""


class AgentThread:
    """Async context manager that opens an agent on an event loop in its own daemon thread, and closes it there.

    Blocking code of the agent then cannot block the caller's event loop, which handles the terminal. Construct it
    inside the caller's running event loop.

    Args:
        open_agent: Called in the new thread; returns a context manager that yields the open agent.
        end_s: Maximum seconds to wait on exit for the agent to close and the thread to end.
    """

    def __init__(self, open_agent: Callable[[], AbstractAsyncContextManager[CompiledAgentGraph]], end_s: float) -> None:
        self._open_agent = open_agent
        self._end_s = end_s
        self._opened: asyncio.Future[CompiledAgentGraph] = asyncio.get_running_loop().create_future()
        self._ended = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._caller = asyncio.get_running_loop()
        # A daemon: a tool that blocks must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name="graph-agent chat", daemon=True)
        self.is_stuck = False
        """Whether the thread had not ended `end_s` seconds after the exit began; False before the exit."""

    async def __aenter__(self) -> CompiledAgentGraph:
        """Start the thread, wait until the agent is open, and return it; raises what opening it raises."""
        self._thread.start()
        return await self._opened

    async def __aexit__(self, *_: object) -> None:
        """Close the agent in its thread, wait up to `end_s` seconds for the thread to end, and set `is_stuck`."""
        if self._loop is not None and self._closing is not None:
            with suppress(RuntimeError):  # the loop may be closed already
                self._loop.call_soon_threadsafe(self._closing.set)
        # Waited for in another thread: the caller's loop must still handle keys and signals.
        self.is_stuck = not await asyncio.to_thread(self._ended.wait, self._end_s)

    def abandon(self) -> None:
        """Make `__aexit__` return without waiting, for an agent whose loop is blocked.

        `is_stuck` is then True unless the thread has ended.
        """
        self._end_s = 0

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the agent's loop, wait for it, and return its result.

        Raises what the coroutine raises. Cancelling the wait cancels the coroutine. Call it only after `__aenter__`.
        """
        assert self._loop is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def stream(self, start: Callable[[], AsyncGenerator[Part]]) -> AsyncIterator[Part]:
        """Yield the parts of a run that executes on the agent's loop, in order.

        Parts are queued without a bound, so a slow reader does not slow the run. An exception of the run is raised
        here, after the parts that came before it. Closing the iterator, or cancelling the task that reads it, cancels
        the run.

        Args:
            start: Called on the agent's loop; returns the stream of the run, e.g. `lambda: session.stream(text)`.
        """
        queue: asyncio.Queue[Part | BaseException | None] = asyncio.Queue()

        def put(item: Part | BaseException | None) -> None:
            """Add an item to the queue from the agent's thread. Does nothing if the caller's loop is closed.

            Args:
                item: A part; the exception that ended the run; or None at the end.
            """
            with suppress(RuntimeError):  # the caller's loop may be closed
                self._caller.call_soon_threadsafe(queue.put_nowait, item)

        async def produce() -> None:
            """Read the stream on the agent's loop into the queue; its end is queued as None, its exception as an
            object.

            An exception that is no `Exception`, such as a cancellation, is queued and also raised.
            """
            try:
                async with aclosing(start()) as parts:
                    async for part in parts:
                        put(part)
                put(None)
            except BaseException as error:
                put(error)
                # A cancellation must reach the event loop that requested it.
                if not isinstance(error, Exception):
                    raise

        assert self._loop is not None
        producer = asyncio.run_coroutine_threadsafe(produce(), self._loop)
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            # A reader that leaves early must not leave the run behind.
            producer.cancel()

    def _work(self) -> None:
        """Run the agent's event loop in its thread, until the agent is closed; then set `_ended`.

        An exception while the agent is opened is raised by `__aenter__`; a later one is dropped.
        """
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self._answer(self._opened.set_exception, error)
        finally:
            self._ended.set()

    async def _serve(self) -> None:
        """Open the agent, pass it to `__aenter__`, and keep it open until `__aexit__` requests the end."""
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        async with self._open_agent() as graph:
            self._answer(self._opened.set_result, graph)
            await self._closing.wait()

    def _answer(self, resolve: Callable[[Any], None], value: Any) -> None:
        """Set the result or the exception of the future that `__aenter__` awaits, from the agent's thread.

        Does nothing if the future is done or cancelled, or the caller's loop is closed.

        Args:
            resolve: `set_result` or `set_exception` of the future; called with `value` on the caller's loop.
            value: The opened agent, or the exception.
        """

        def answer() -> None:
            """Complete the future, on the caller's loop, unless it is done already."""
            if not self._opened.done():
                resolve(value)

        with suppress(RuntimeError):  # the caller's loop may be closed
            self._caller.call_soon_threadsafe(answer)


class Interrupts:
    """Handles Ctrl-C (SIGINT) while a command runs; construct it in the task of the command.

    The first Ctrl-C aborts the running session, which settles its calls, or cancels the command if no session runs;
    each further one cancels the command. Both fail if code blocks the event loop or suppresses the cancellation, so the
    first Ctrl-C also starts a thread that ends the process after `EXIT_S` seconds, or after `_RESPONSE_S` seconds if
    the loop does not react.
    """

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._command = asyncio.current_task()
        self._session: Session | None = None
        self._aborting: asyncio.Task[bool] | None = None
        self._reacted = threading.Event()

    @classmethod
    @contextmanager
    def handled(cls) -> Iterator[Interrupts]:
        """Handle Ctrl-C (SIGINT) for the current task within the context, and yield the handler.

        The handler's `count` is the number of times that Ctrl-C was pressed. The previous handler of SIGINT is restored
        on exit. Outside the main thread, where Python permits no signal handler, nothing is handled and the count stays
        0.
        """
        interrupts = cls()
        if threading.current_thread() is not threading.main_thread():
            yield interrupts
            return
        with handling(signal.SIGINT, interrupts._interrupted):
            yield interrupts

    @contextmanager
    def aborting(self, session: Session) -> Iterator[None]:
        """Make the first Ctrl-C within the context abort this session, in place of cancelling the command."""
        self._session = session
        try:
            yield
        finally:
            self._session = None

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        """Count a SIGINT and schedule its effect on the event loop.

        The first one starts the thread that ends the process.
        """
        self.count += 1
        if self.count == 1:
            # A thread, because a blocked event loop would never run a timer.
            threading.Thread(target=self._end_in_time, name="graph-agent interrupt", daemon=True).start()
        # The handler interrupts any code; only the event loop may touch tasks.
        self._loop.call_soon_threadsafe(self._act, self.count)

    def _act(self, count: int) -> None:
        """Handle one Ctrl-C on the event loop: at the first, abort the session that runs; otherwise cancel the
        command's task.

        Without a running session, the first one cancels, too. `_end_in_time` learns that the loop reacts.

        Args:
            count: How often Ctrl-C was pressed, with this one.
        """
        self._reacted.set()
        if count == 1 and self._session is not None:
            self._aborting = self._loop.create_task(self._session.abort())
        elif self._command is not None:
            self._command.cancel()

    def _end_in_time(self) -> None:
        """End the process with status 130, some seconds after the first Ctrl-C; runs in a daemon thread.

        If the event loop does not react within `_RESPONSE_S` seconds, the process ends then, otherwise `EXIT_S` seconds
        after the reaction. If the process ends earlier, the thread ends with it.
        """
        reason = "something blocks the event loop, such as a coroutine of a tool that makes a blocking call"
        if self._reacted.wait(_RESPONSE_S):
            time.sleep(EXIT_S)
            reason = f"something did not end within {EXIT_S:g} s"
        leave_at_once(reason)


def leave_at_once(reason: str) -> NoReturn:
    """Print `Stopped at once: REASON.` on standard error, and end the process with status 130 (`STOPPED`).

    May be called in any thread. Other threads are not waited for, and exit handlers do not run; the terminal's echo of
    typed keys is restored.
    """
    show_typed_keys()
    # Another thread may hold the lock of sys.stderr.
    os.write(2, f"Stopped at once: {reason}.\n".encode())
    os._exit(STOPPED)


def leave_interrupted() -> NoReturn:
    """End the process with status 130 (`STOPPED`) without waiting for threads and without exit handlers.

    The echo of typed keys is restored, and standard output and standard error are flushed. A regular shutdown could
    hang, because a thread may be blocked on standard input, whose lock the interpreter needs.
    """
    try:
        show_typed_keys()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(STOPPED)  # also after an error, such as that of a closed pipe
