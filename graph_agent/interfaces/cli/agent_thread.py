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


class AgentThread:
    """Opens an agent in a daemon thread, and closes it there, within `end_s` on exit."""

    def __init__(self, open_agent: Callable[[], AbstractAsyncContextManager[CompiledAgentGraph]], end_s: float) -> None:
        self._open_agent = open_agent
        self._end_s = end_s
        self._opened: asyncio.Future[CompiledAgentGraph] = asyncio.get_running_loop().create_future()
        self._ended = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._caller = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="graph-agent chat", daemon=True)
        self.is_stuck = False
        """Whether the thread did not end in time."""

    async def __aenter__(self) -> CompiledAgentGraph:
        """Start the thread, and return the agent once it is open; raises what `open_agent` raises."""
        self._thread.start()
        return await self._opened

    async def __aexit__(self, *_: object) -> None:
        """Close the agent, and wait for the end of the thread."""
        if self._loop is not None and self._closing is not None:
            with suppress(RuntimeError):  # the loop may be closed already
                self._loop.call_soon_threadsafe(self._closing.set)
        self.is_stuck = not await asyncio.to_thread(self._ended.wait, self._end_s)

    def abandon(self) -> None:
        """Do not wait for the end of the thread on exit: its loop is blocked."""
        self._end_s = 0

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the agent's loop, and return its result."""
        assert self._loop is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def stream(self, start: Callable[[], AsyncGenerator[Part]]) -> AsyncIterator[Part]:
        """Yield the parts of a run on the agent's loop, where `start` is called."""
        queue: asyncio.Queue[Part | BaseException | None] = asyncio.Queue()

        def put(item: Part | BaseException | None) -> None:
            with suppress(RuntimeError):  # the caller's loop may be closed
                self._caller.call_soon_threadsafe(queue.put_nowait, item)

        async def produce() -> None:
            try:
                async with aclosing(start()) as parts:
                    async for part in parts:
                        put(part)
                put(None)
            except BaseException as error:
                put(error)
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
            producer.cancel()

    def _work(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self._answer(self._opened.set_exception, error)
        finally:
            self._ended.set()

    async def _serve(self) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        async with self._open_agent() as graph:
            self._answer(self._opened.set_result, graph)
            await self._closing.wait()

    def _answer(self, resolve: Callable[[Any], None], value: Any) -> None:
        def answer() -> None:
            if not self._opened.done():
                resolve(value)

        with suppress(RuntimeError):  # the caller's loop may be closed
            self._caller.call_soon_threadsafe(answer)


STOPPED = 130
"""Exit status of a program ended by Ctrl-C."""
GRACE_S = 10.0
"""Maximum seconds from Ctrl-C to the end of the process, to settle the calls and close databases and servers."""
_RESPONSE_S = 3.0
"""Seconds in which the event loop must react to Ctrl-C; otherwise it counts as blocked."""


class Interrupts:
    """Handler of Ctrl-C while a command runs.

    The first Ctrl-C aborts the running session, or cancels the command if no session runs; a second one cancels the
    command. Neither works if code blocks the event loop or swallows the cancellation, so a thread ends the process
    `GRACE_S` seconds after the first Ctrl-C, or after `_RESPONSE_S` seconds if the loop does not react.
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
        """Handle Ctrl-C for the current task within the context; does nothing outside the main thread."""
        interrupts = cls()
        if threading.current_thread() is not threading.main_thread():
            yield interrupts
            return
        with handling(signal.SIGINT, interrupts._interrupted):
            yield interrupts

    @contextmanager
    def aborting(self, session: Session) -> Iterator[None]:
        """Make the first Ctrl-C within the context abort this session."""
        self._session = session
        try:
            yield
        finally:
            self._session = None

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count == 1:
            threading.Thread(target=self._end_in_time, name="graph-agent interrupt", daemon=True).start()
        self._loop.call_soon_threadsafe(self._act, self.count)

    def _act(self, count: int) -> None:
        self._reacted.set()
        if count == 1 and self._session is not None:
            self._aborting = self._loop.create_task(self._session.abort())
        elif self._command is not None:
            self._command.cancel()

    def _end_in_time(self) -> None:
        reason = "something blocks the event loop, such as a coroutine of a tool that makes a blocking call"
        if self._reacted.wait(_RESPONSE_S):
            time.sleep(GRACE_S)
            reason = f"something did not end within {GRACE_S:g} s"
        leave_at_once(reason)


def leave_at_once(reason: str) -> NoReturn:
    """Print the reason, and exit with `STOPPED`, in any thread and without waiting for others."""
    show_typed_keys()
    # Another thread may hold the lock of sys.stderr.
    os.write(2, f"Stopped at once: {reason}.\n".encode())
    os._exit(STOPPED)


def leave_interrupted() -> NoReturn:
    """Flush the output streams, and exit with `STOPPED` without waiting for threads.

    A thread may be blocked on standard input, whose lock the interpreter needs for a regular shutdown.
    """
    show_typed_keys()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(STOPPED)
