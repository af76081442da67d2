"""An agent on the event loop of a thread of its own, so that its blocking code cannot block the terminal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from graph_agent.compiled import CompiledAgentGraph
    from graph_agent.session.results import Part

T = TypeVar("T")


class AgentThread:
    """Opens an agent in a daemon thread, and closes it there.

    Args:
        open_agent: Returns the context of the opened agent.
        end_s: Maximum seconds to wait for the end of the thread on exit.
    """

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
        """Start the thread, and return the agent once it is open.

        Raises:
            ConfigError: As `open_agent`.
        """
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
        """Yield the parts of a run on the agent's loop.

        Args:
            start: Called on the agent's loop; returns the parts.
        """
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
