"""Calls from any thread to the event loop that owns the sessions."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from graph_agent.errors import SyncInLoopError
from graph_agent.mcp.failures import McpCallError

T = TypeVar("T")

TAKE_UP_S = 10.0
"""Seconds the owning loop may take to begin a call from another thread, before it is taken to be blocked."""


class Hop:
    """Runs work on the loop it was made in, whichever loop or thread asks."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work` on the owning loop; cancelling here cancels it there.

        Raises `McpCallError` when that loop has ended, `SyncInLoopError` when it is blocked, and what `work` raises.
        """
        if asyncio.get_running_loop() is self._loop:
            return await work()
        begun, done = self._start(work)
        try:
            # Not wait_for, which loses a cancellation that comes at the moment of success (before Python 3.12).
            async with asyncio.timeout(TAKE_UP_S):
                await asyncio.wrap_future(begun)
        except TimeoutError:
            done.cancel()
            raise _blocked() from None
        except asyncio.CancelledError:
            done.cancel()
            raise
        return await asyncio.wrap_future(done)

    def run_blocking(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work` on the owning loop and block this thread until it is done.

        Raises `SyncInLoopError` in the thread of any running loop, and what `run` raises.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise SyncInLoopError(
                "An MCP tool was called synchronously from the thread of a running event loop, which it would block; "
                "use `await tool.ainvoke(...)`, or `await graph.ainvoke(...)` for the whole graph."
            )
        begun, done = self._start(work)
        try:
            begun.result(TAKE_UP_S)
        except TimeoutError:
            begun.cancel()
            done.cancel()
            raise _blocked() from None
        try:
            return done.result()
        finally:
            # For a wait that is interrupted; it changes nothing about work that is done.
            done.cancel()

    def _start(
        self, work: Callable[[], Coroutine[Any, Any, T]]
    ) -> tuple[concurrent.futures.Future[None], concurrent.futures.Future[T]]:
        if not self._loop.is_running():
            raise McpCallError(
                "The event loop that opened the MCP servers is not running; keep it running, and stay inside "
                "`async with open_mcp_tools(...)`, for as long as the tools are used.",
                may_have_run=False,
            )
        begun: concurrent.futures.Future[None] = concurrent.futures.Future()

        async def run() -> T:
            if not begun.set_running_or_notify_cancel():
                raise asyncio.CancelledError
            begun.set_result(None)
            return await work()

        return begun, asyncio.run_coroutine_threadsafe(run(), self._loop)


def _blocked() -> SyncInLoopError:
    return SyncInLoopError(
        f"The event loop that opened the MCP servers did not take a call within {TAKE_UP_S:g} s: it is blocked, "
        "most likely by a synchronous call such as graph.invoke(...) made from its own thread; "
        "use `await graph.ainvoke(...)` there, or call invoke from another thread."
    )
