"""Runs calls from any thread or event loop on the event loop that owns the sessions."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from graph_agent.base._internal.sync_bridge import running_loop
from graph_agent.base.errors import SyncInLoopError
from graph_agent.integrations.mcp.messages import McpCallError

T = TypeVar("T")

START_TIMEOUT_S = 10.0
"""Seconds after which the owning loop counts as blocked if it has not started a call from another thread."""


class LoopBridge:
    """Runs coroutines on the event loop in which this object was created, from any loop or thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine that `work` returns on the owning loop; cancelling this call cancels it.

        On the owning loop itself, it is awaited directly. Raises, on another loop, `McpCallError` if the owning loop
        has ended, `SyncInLoopError` if it has not started the work after `START_TIMEOUT_S` seconds (it is blocked, and
        the work is cancelled), and the errors of `work`.
        """
        if asyncio.get_running_loop() is self._loop:
            return await work()
        started, result = self._start(work)
        try:
            # Not wait_for, which before Python 3.12 loses a cancellation that arrives at the moment of success.
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.wrap_future(started)
        except TimeoutError:
            result.cancel()
            raise _blocked() from None
        except asyncio.CancelledError:
            result.cancel()
            raise
        return await asyncio.wrap_future(result)

    def run_blocking(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine that `work` returns on the owning loop, and block this thread until it is done.

        Raises `SyncInLoopError` in a thread with a running event loop, and the errors of `run`.
        """
        if running_loop() is not None:
            raise SyncInLoopError(
                "An MCP tool was called synchronously from the thread of a running event loop, which it would block; "
                "use `await tool.ainvoke(...)`, or `await graph.ainvoke(...)` for the whole graph."
            )
        started, result = self._start(work)
        try:
            started.result(START_TIMEOUT_S)
        except TimeoutError:
            started.cancel()
            result.cancel()
            raise _blocked() from None
        try:
            return result.result()
        finally:
            # Cancels the work if the wait was interrupted; no effect on finished work.
            result.cancel()

    def _start(
        self, work: Callable[[], Coroutine[Any, Any, T]]
    ) -> tuple[concurrent.futures.Future[None], concurrent.futures.Future[T]]:
        """Start the work on the owning loop; return a future of its start and one of its result.

        Raises `McpCallError` if that loop does not run any more.
        """
        if not self._loop.is_running():
            raise McpCallError(
                "The event loop that opened the MCP servers is not running; keep it running, and stay inside "
                "`async with open_mcp_tools(...)`, for as long as the tools are used.",
                may_have_run=False,
            )
        started: concurrent.futures.Future[None] = concurrent.futures.Future()

        async def run() -> T:
            """Mark the work as started, and do it; raise `CancelledError` if the caller does not wait for the start any
            more.
            """
            if not started.set_running_or_notify_cancel():
                raise asyncio.CancelledError
            started.set_result(None)
            return await work()

        return started, asyncio.run_coroutine_threadsafe(run(), self._loop)


def _blocked() -> SyncInLoopError:
    """Return (not raise) the error for an owning loop that has not started a call in time, because it is blocked."""
    return SyncInLoopError(
        f"The event loop that opened the MCP servers did not take a call within {START_TIMEOUT_S:g} s: it is blocked, "
        "most likely by a synchronous call such as graph.invoke(...) made from its own thread; "
        "use `await graph.ainvoke(...)` there, or call invoke from another thread."
    )
