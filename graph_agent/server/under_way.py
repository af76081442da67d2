"""The runs under way in a server's process: begun, left, and stopped with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from graph_agent.server.host import Host
from graph_agent.server.metrics import Metrics
from graph_agent.server.problems import stopping
from graph_agent.server.running import Running
from graph_agent.server.turns import Turn


class Runs:
    """The runs under way in this process.

    Args:
        host: The agent.
        metrics: Where runs are counted.
    """

    def __init__(self, host: Host, metrics: Metrics) -> None:
        self.host = host
        self.metrics = metrics
        self._running: set[Running] = set()
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._drainers: list[Callable[[], None]] = []
        self._closing: set[asyncio.Future[None]] = set()
        self._draining = False

    @contextlib.asynccontextmanager
    async def run(self, turn: Turn, *, streams: bool) -> AsyncIterator[Running]:
        """Begin a run, and stop it when it is left before its end.

        Raises:
            ProblemError: When the server is stopping.
        """
        if self._draining:
            raise stopping()
        running = Running(self.host, turn, self.metrics, streams=streams)
        self._running.add(running)
        try:
            yield running
        finally:
            self._running.discard(running)
            await running.close()

    @property
    def draining(self) -> bool:
        """Whether the server is stopping."""
        return self._draining

    def drain(self) -> None:
        """Begin no more runs, and let those under way stop at their next boundary."""
        self._draining = True
        self.host.news.end()
        for running in self._running:
            running.drain()
        for drain in self._drainers:
            drain()

    def cancel(self) -> None:
        """Stop every run now."""
        for running in list(self._running):
            running.cancel()
        for close in self._closers:
            self._closing.add(asyncio.ensure_future(close()))

    def closed_with(
        self, close: Callable[[], Awaitable[None]], *, drain: Callable[[], None]
    ) -> Callable[[], Awaitable[None]]:
        """Have something else that works on sessions closed when every run is stopped.

        Args:
            close: Closes it.
            drain: Lets what it works on stop at its next boundary; any thread may call it.

        Returns:
            The same, which closes it once however often it is called.
        """
        closed: list[asyncio.Future[None]] = []

        async def once() -> None:
            if not closed:
                closed.append(asyncio.ensure_future(close()))
            await closed[0]

        self._closers.append(once)
        self._drainers.append(drain)
        return once
