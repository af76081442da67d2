"""Manages the active runs of a server's process: starts, drains and cancels them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from graph_agent._internal.closing_stream import BETWEEN_PIECES_S
from graph_agent._internal.failure_log import log_failure
from graph_agent.server.chat.run import RunEnded, ServerRun
from graph_agent.server.chat.run_spec import RunSpec
from graph_agent.server.hosting.host import Host
from graph_agent.server.monitoring.metrics import Metrics
from graph_agent.server.problems import ProblemError, stopping

logger = logging.getLogger(__name__)

_PIECES_A_SECOND = 500
_LONGEST_BETWEEN_PIECES_S = 0.1


def between_pieces_s(runs: int) -> float:
    """Return the minimum seconds between two pieces of one streamed answer.

    Sending a piece costs more than its tokens. Under load, all runs of a process therefore share a rate of
    pieces.

    Args:
        runs: Number of active runs of the process.
    """
    return max(BETWEEN_PIECES_S, min(runs / _PIECES_A_SECOND, _LONGEST_BETWEEN_PIECES_S))


class Runs:
    """The active runs of this process.

    Args:
        metrics: Metrics of the runs.
    """

    def __init__(self, host: Host, metrics: Metrics) -> None:
        self.host = host
        self.metrics = metrics
        self._active: set[ServerRun] = set()
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._drainers: list[Callable[[], None]] = []
        self._closing: set[asyncio.Future[None]] = set()
        self._following: set[asyncio.Task[None]] = set()
        self._draining = False

    @contextlib.asynccontextmanager
    async def run(
        self, spec: RunSpec, *, streams: bool, resources: contextlib.ExitStack | None = None
    ) -> AsyncIterator[ServerRun]:
        """Start a run, and stop it if the context is left before its end.

        A run with an idempotency key continues to its end: the caller may repeat the request to get the answer.

        After the run's answer, the follow-ups queued in its session run in the background.

        Args:
            streams: Whether to stream the answer.
            resources: The caller's resources for the run; ownership passes to this method, which closes them when the
                run has ended. `ServerRun.release` closes them before the last byte of the answer is sent. Follow-ups
                need none: they count when they are queued.

        Raises:
            ProblemError: If the server is stopping.
        """
        owned = resources.pop_all() if resources is not None else contextlib.ExitStack()
        run: ServerRun | None = None
        try:
            async with self._start(spec, streams=streams, on_end=self._start_follow_ups) as run:
                run.release = owned.close
                yield run
        finally:
            if run is None or run.detached is None:
                owned.close()

    @contextlib.asynccontextmanager
    async def _start(
        self, spec: RunSpec, *, streams: bool, on_end: Callable[[ServerRun], None] | None = None
    ) -> AsyncIterator[ServerRun]:
        if self._draining:
            raise stopping()
        run = ServerRun(
            self.host,
            spec,
            self.metrics,
            streams=streams,
            between_pieces_s=lambda: between_pieces_s(len(self._active)),
            on_end=on_end,
        )
        self._active.add(run)
        try:
            yield run
        finally:
            if spec.scope.mark is not None and not run.ended:
                run.detached = asyncio.create_task(self._finish(run), name="a run without its client")
                self._following.add(run.detached)
                run.detached.add_done_callback(self._following.discard)
            else:
                self._active.discard(run)
                await run.close()

    async def _finish(self, run: ServerRun) -> None:
        """Wait for the end of a run whose client has left, and of its follow-ups."""
        try:
            await run.finish()
        finally:
            self._active.discard(run)
            run.release()
        if run.following is not None:
            await asyncio.wait([run.following])

    def _start_follow_ups(self, run: ServerRun) -> None:
        if run.spec.session_id is None:
            return
        run.following = asyncio.create_task(self._run_follow_ups(run), name="follow-ups")
        self._following.add(run.following)
        run.following.add_done_callback(self._following.discard)

    async def _run_follow_ups(self, run: ServerRun) -> None:
        """Run the follow-ups queued in a session one after the other; their answers go to its history."""
        try:
            while not run.input.aborted and (note := await run.driver.next_after(run.input)) is not None:
                check = functools.partial(run.driver.control.check_next, note)
                async with self._start(run.spec.for_follow_up(note, check), streams=False) as run:
                    while not isinstance(await run.part(), RunEnded):
                        pass
        except ProblemError:
            # Already logged; or the server stops; or another run holds the session and takes the follow-up.
            return
        except Exception as error:  # noqa: BLE001 - a background task has no caller to raise to
            log_failure(logger, "Running a follow-up", error)

    @property
    def draining(self) -> bool:
        """Whether the server is stopping."""
        return self._draining

    def drain(self) -> None:
        """Refuse new runs, and let active ones stop at their next superstep boundary."""
        self._draining = True
        self.host.notifier.stop()
        for run in self._active:
            run.drain()
        for drain in self._drainers:
            drain()

    def cancel(self) -> None:
        """Cancel every run immediately."""
        for run in list(self._active):
            run.cancel()
        for close in self._closers:
            self._closing.add(asyncio.ensure_future(close()))

    async def aclose(self) -> None:
        """Cancel all runs and wait for the follow-ups; while draining, these first get `drain_s` seconds to finish."""
        if self._draining and self._following:
            await asyncio.wait(self._following, timeout=self.host.settings.drain_s)
        self._draining = True
        for run in list(self._active):
            run.cancel()
        if self._following:
            await asyncio.wait(self._following)

    def register_closer(
        self, close: Callable[[], Awaitable[None]], *, drain: Callable[[], None]
    ) -> Callable[[], Awaitable[None]]:
        """Register another component that works on sessions, to be drained and closed together with the runs.

        Args:
            close: Closes the component.
            drain: Lets its work stop at the next superstep boundary; may be called from any thread.

        Returns:
            An idempotent version of `close`.
        """
        closed: list[asyncio.Future[None]] = []

        async def once() -> None:
            if not closed:
                closed.append(asyncio.ensure_future(close()))
            await closed[0]

        self._closers.append(once)
        self._drainers.append(drain)
        return once
