"""A run under way for one request: what it says as it goes, and how it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl

from graph_agent.errors import SessionBusyError, UserError
from graph_agent.server.failures import log_failure
from graph_agent.server.host import Host
from graph_agent.server.metrics import Metrics
from graph_agent.server.outcomes import Outcome, outcome_of
from graph_agent.server.problems import ProblemError, stopping
from graph_agent.server.turns import Turn
from graph_agent.session import Session

logger = logging.getLogger(__name__)

_MOST_WAITING = 256
"""Parts that may wait for a slow client; then the run waits too."""


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Stepped:
    """One step forward: `{"type": "progress", "step", "action", "target"}`."""

    progress: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """The run is over; always the last part."""

    outcome: Outcome


Part: TypeAlias = Said | Stepped | Ended


class Running:
    """One run of a turn, in a task of its own, so that a client that goes away or reads slowly cannot break it.

    Args:
        host: The agent.
        turn: What to run.
        metrics: Where the run is counted.
        streams: Whether the answer is wanted piece by piece.
    """

    def __init__(self, host: Host, turn: Turn, metrics: Metrics, *, streams: bool) -> None:
        self.turn = turn
        self._host = host
        self._metrics = metrics
        # An answer of a given shape is the last of several tries: it is told when it is there.
        streams = streams and "response_schema" not in turn.context
        self._modes = ["messages", "custom", "updates"] if streams else ["custom", "updates"]
        self._open_calls: dict[str, datetime] = {}
        self._control = RunControl()
        self._parts: asyncio.Queue[Part | BaseException] = asyncio.Queue(_MOST_WAITING)
        self._next: Part | BaseException | None = None
        self._over = self._left = False
        self._task = asyncio.create_task(self._run(), name=f"run of {turn.session_id or 'a request'}")

    async def part(self, timeout_s: float | None = None) -> Part | None:
        """The next part; None when none comes in time. After `Ended` there is no other.

        Pieces of the answer that are here already are told as one: a server that is busy sends fewer and larger frames.

        Raises:
            ProblemError: When the run cannot be begun, or is stopped with the server.
        """
        part, self._next = self._next, None
        if part is None and not self._parts.empty():
            part = self._parts.get_nowait()
        elif part is None:
            try:
                async with asyncio.timeout(timeout_s):
                    part = await self._parts.get()
            except TimeoutError:
                return None
        if isinstance(part, BaseException):
            raise part
        while isinstance(part, Said) and self._next is None and not self._parts.empty():
            following = self._parts.get_nowait()
            if isinstance(following, Said):
                part = Said(part.text + following.text)
            else:
                self._next = following
        return part

    @property
    def ended(self) -> bool:
        """Whether the run is over, told or not."""
        return self._over

    def drain(self) -> None:
        """Let it stop at its next boundary; its session goes on from there."""
        self._control.request_drain()

    def cancel(self) -> None:
        """Stop it now."""
        self._task.cancel()

    async def close(self) -> None:
        """Leave it: one that is still under way is stopped, and waited for.

        A session is aborted, so that it knows what was done; what keeps no session is only cancelled.
        """
        self._left = True
        # A run that is over may still wait for room to say so.
        while not self._parts.empty():
            self._parts.get_nowait()
        keeps_none = self.turn.session_id is None
        if not self._over and (keeps_none or not await Session(self.turn.graph, self.turn.thread).abort()):
            self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        begun = time.perf_counter()
        status = "CANCELLED"
        last: Part | BaseException
        try:
            last = Ended(await self._to_end())
            status = last.outcome.status
        except GraphDrained:
            status, last = "DRAINED", stopping()
        except SessionBusyError:
            status, last = "BUSY", ProblemError("busy", "This session is answering another request.", retry_after_s=1)
        except UserError as error:
            status, last = "REFUSED", ProblemError("invalid", str(error))
        except asyncio.CancelledError:
            last = stopping()
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits must hear of it
            log_failure(logger, "A run", error)
            status, last = "FAILED", ProblemError("internal", "The server could not answer; its log says why.")
        try:
            await asyncio.shield(self._tidy(status))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - who waits must hear of the end
            log_failure(logger, "Tidying up after a run", error)
        self._metrics.run_ended(status, time.perf_counter() - begun)
        self._over = True
        await self._tell(last)

    async def _tell(self, part: Part | BaseException) -> None:
        if not self._left:
            await self._parts.put(part)

    async def _to_end(self) -> Outcome:
        turn = self.turn
        if turn.token is not None:
            await self._host.park(turn.thread)
        stream = turn.graph.astream(
            turn.given, turn.config, context=turn.context, stream_mode=self._modes, control=self._control
        )
        async for mode, payload in stream:
            if mode == "messages":
                if text := _answer_text(*payload):
                    await self._tell(Said(text))
            elif mode == "updates":
                self._metrics.count(payload, self._open_calls)
            elif isinstance(payload, dict) and payload.get("type") == "progress":
                await self._tell(Stepped(payload))
        outcome = outcome_of(turn, await turn.graph.aget_state(turn.config))
        self._metrics.used(outcome.input_tokens, outcome.output_tokens)
        return outcome

    async def _tidy(self, status: str) -> None:
        """Forget what nobody can come back to."""
        turn = self.turn
        if turn.graph is self._host.passing:
            await turn.graph.checkpointer.adelete_thread(turn.thread)  # type: ignore[union-attr]  # it has one
        elif turn.token is not None and status not in ("RUNNING", "BUSY"):
            await self._host.forget(turn.thread)


def _answer_text(message: BaseMessage, metadata: Mapping[str, Any]) -> str:
    # What the user follows up with comes from the same node, and is not the agent's.
    answers = isinstance(message, AIMessage) and metadata.get("langgraph_node") in ("finalize", "plan")
    return message.text if answers else ""


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
