"""The runs under way in a server's process: begun, left, and stopped with it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from graph_agent._internal.failure_log import log_failure
from graph_agent.server.admission.problems import ProblemError, stopping
from graph_agent.server.chat.run import Ended, Running
from graph_agent.server.chat.turns import Turn
from graph_agent.server.process.host import Host
from graph_agent.server.process.metrics import Metrics
from graph_agent.session.control import SessionControl

logger = logging.getLogger(__name__)


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
        self._following: set[asyncio.Task[None]] = set()
        self._draining = False

    @contextlib.asynccontextmanager
    async def run(
        self, turn: Turn, *, streams: bool, place: contextlib.ExitStack | None = None
    ) -> AsyncIterator[Running]:
        """Begin a run, and stop it when it is left before its end.

        When it has an answer, the follow-ups that are queued in its session are run, in the background.

        Args:
            turn: What to run.
            streams: Whether the answer is wanted piece by piece.
            place: What its caller holds for it: taken over, and closed when the run was left and its follow-ups are
                over.

        Raises:
            ProblemError: When the server is stopping.
        """
        held = place.pop_all() if place is not None else contextlib.ExitStack()
        running: Running | None = None
        try:
            async with self._begun(turn, streams=streams, ended=self._follow) as running:
                yield running
        finally:
            if running is None or running.following is None:
                held.close()
            else:
                running.following.add_done_callback(lambda _: held.close())

    @contextlib.asynccontextmanager
    async def _begun(
        self, turn: Turn, *, streams: bool, ended: Callable[[Running], None] | None = None
    ) -> AsyncIterator[Running]:
        if self._draining:
            raise stopping()
        running = Running(self.host, turn, self.metrics, streams=streams, on_end=ended)
        self._running.add(running)
        try:
            yield running
        finally:
            self._running.discard(running)
            await running.close()

    def _follow(self, running: Running) -> None:
        if running.turn.session_id is None:
            return
        running.following = asyncio.create_task(self._run_follow_ups(running.turn), name="follow-ups")
        self._following.add(running.following)
        running.following.add_done_callback(self._following.discard)

    async def _run_follow_ups(self, turn: Turn) -> None:
        """Run what is queued in a turn's session, one after the other; their answers are in its history."""
        control = SessionControl(self.host.kept, turn.thread)
        try:
            while (note := await control.next_follow_up()) is not None:
                check = functools.partial(control.check_next, note)
                async with self._begun(turn.followed_by(note, check), streams=False) as running:
                    while not isinstance(await running.part(), Ended):
                        pass
                if running.aborted:
                    return
        except ProblemError:
            # It is logged, it is stopped with the server, or another run has the session, and takes it.
            return
        except Exception as error:  # noqa: BLE001 - nobody waits for it
            log_failure(logger, "Running a follow-up", error)

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

    async def aclose(self) -> None:
        """Stop the follow-ups under way, and wait for that; a server that drains gives them its time for it."""
        if self._draining and self._following:
            await asyncio.wait(self._following, timeout=self.host.settings.drain_s)
        self._draining = True
        for running in list(self._running):
            running.cancel()
        if self._following:
            await asyncio.wait(self._following)

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
