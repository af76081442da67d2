"""A run under way for one request: what it says as it goes, and how it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl
from langgraph.types import StateSnapshot

from graph_agent._internal.coalesce import Pieces
from graph_agent._internal.failure_log import log_failure
from graph_agent.errors import SessionBusyError, UserError
from graph_agent.runs.run import Run
from graph_agent.server.admission.problems import ProblemError, problem_of_failure, stopping
from graph_agent.server.chat.outcomes import Outcome, outcome_of
from graph_agent.server.chat.turns import Turn
from graph_agent.server.process.host import Host
from graph_agent.server.process.metrics import Metrics
from graph_agent.state.failure_message import failure_of

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
        on_end: Called when the run has come to its end, before its outcome is told; not when it was stopped. None for
            nothing to do then.
    """

    def __init__(
        self,
        host: Host,
        turn: Turn,
        metrics: Metrics,
        *,
        streams: bool,
        on_end: Callable[[Running], None] | None = None,
    ) -> None:
        self.turn = turn
        self.state: StateSnapshot | None = None
        """Where its session was when it ended; None before, and when it was stopped."""
        self.following: asyncio.Task[None] | None = None
        """What runs the follow-ups behind it; None for none."""
        self.aborted = False
        """Whether it was to be stopped, also where its answer was complete before."""
        self._on_end = on_end
        turn.around.after = self._read_state
        self._host = host
        self._metrics = metrics
        # An answer of a given shape is the last of several tries: it is told when it is there.
        streams = streams and "response_schema" not in turn.context
        self._streams = streams
        self._read: set[str | None] = set()
        self._open_calls: dict[str, datetime] = {}
        self._control = RunControl()
        self._parts: asyncio.Queue[Part | BaseException] = asyncio.Queue(_MOST_WAITING)
        self._pieces = Pieces(lambda text: self._put(Said(text)))
        self._over = self._left = False
        self._task = asyncio.create_task(self._run(), name=f"run of {turn.session_id or 'a request'}")

    async def part(self, timeout_s: float | None = None) -> Part | None:
        """The next part; None when none comes in time. After `Ended` there is no other.

        Raises:
            ProblemError: When the run cannot be begun, or is stopped with the server.
        """
        try:
            async with asyncio.timeout(timeout_s):
                part = await self._parts.get()
        except TimeoutError:
            return None
        if isinstance(part, BaseException):
            raise part
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

        A session is aborted, so that it knows what was done; what keeps no session is only cancelled. A session that
        another run has is not this one's to abort.
        """
        self._left = True
        # A run that is over may still wait for room to say so.
        while not self._parts.empty():
            self._parts.get_nowait()
        if not self._over and self.turn.session_id is not None:
            self.turn.around.abort()
        elif not self._over:
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
            status, last = "FAILED", problem_of_failure(error)
        tidying = asyncio.ensure_future(self._tidy(status))
        while not tidying.done():
            # Whoever is in a hurry cancels once more; half a tidying would be worse than one more moment.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([tidying])
        if not tidying.cancelled() and (failure := tidying.exception()) is not None:
            log_failure(logger, "Tidying up after a run", failure)
        self._metrics.run_ended(status, time.perf_counter() - begun)
        self._over = True
        if self._on_end is not None and self.state is not None and not self.aborted:
            self._on_end(self)
        await self._tell(last)

    async def _read_state(self, run: Run) -> None:
        # Here and not later, when another run of the session may have begun.
        self.state, self.aborted = await self.turn.graph.aget_state(self.turn.config), run.aborted

    async def _tell(self, part: Part | BaseException) -> None:
        await self._pieces.flush()
        await self._put(part)

    async def _put(self, part: Part | BaseException) -> None:
        if not self._left:
            await self._parts.put(part)

    async def _to_end(self) -> Outcome:
        turn = self.turn
        if turn.token is not None:
            await self._host.park(turn.thread)
        if self._streams:
            turn.around.reader = self._hear
        stream = turn.graph.astream(
            turn.given,
            turn.config,
            # The outcome tells what failed.
            context={**turn.context, "on_failure": "answer"},
            stream_mode=["custom", "updates"],
            control=self._control,
        )
        async for mode, payload in stream:
            if mode == "updates":
                self._metrics.count(payload, self._open_calls)
                if self._streams:
                    await self._hear_unread(payload)
            elif isinstance(payload, dict) and payload.get("type") == "progress":
                await self._tell(Stepped(payload))
        assert self.state is not None, "a run that comes to its end reports it"
        outcome = outcome_of(turn, self.state)
        self._metrics.used(outcome.input_tokens, outcome.output_tokens)
        return outcome

    async def _hear(self, text: str, message_id: str | None) -> None:
        # Words before calls, and an answer that the user has steered beyond, are messages of their own.
        apart = "\n\n" if self._read and message_id not in self._read else ""
        self._read.add(message_id)
        await self._pieces.add(apart + text)

    async def _hear_unread(self, updates: Mapping[str, Any]) -> None:
        """Tell an answer that no model streamed, such as the sentence of a limit."""
        for message in (updates.get("finalize") or {}).get("messages", ()):
            # A failed run is answered by an error, and not by the message that ends it.
            if isinstance(message, AIMessage) and message.id not in self._read and failure_of(message) is None:
                await self._pieces.add(message.text)

    async def _tidy(self, status: str) -> None:
        """Forget what nobody can come back to."""
        turn = self.turn
        if turn.graph is self._host.passing:
            await turn.graph.checkpointer.adelete_thread(turn.thread)  # type: ignore[union-attr]  # it has one
        elif turn.token is not None and status not in ("RUNNING", "BUSY") and not await self._can_go_on():
            await self._host.forget(turn.thread)

    async def _can_go_on(self) -> bool:
        # Who has been told the calls of a run that was stopped in the middle may send their results once more.
        turn = self.turn
        return turn.goes_on and bool((await turn.graph.aget_state(turn.config)).tasks)
