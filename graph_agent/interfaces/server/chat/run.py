"""Runs a chat request: yields its output parts; can be drained, cancelled or closed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage
from langgraph.errors import GraphDrained, UnknownInterruptError
from langgraph.runtime import RunControl
from langgraph.types import StateSnapshot

from graph_agent.base._compat import changes_in
from graph_agent.base._internal.closing_stream import BETWEEN_PIECES_S, TextCoalescer
from graph_agent.base._internal.failure_log import log_failure
from graph_agent.base.errors import InputConflictError, InputSupersededError, SessionBusyError, UserError
from graph_agent.base.input_ids import input_id_in
from graph_agent.base.input_messages import new_user_messages
from graph_agent.base.types import NO_USAGE
from graph_agent.core.runs.own_checkpoint import load
from graph_agent.core.runs.run import AgentHandle, with_handle
from graph_agent.core.state.call_events import is_progress
from graph_agent.core.state.events import StoredEvent
from graph_agent.interfaces.server.chat.outcomes import ChatOutcome, commentary_of, read_outcome
from graph_agent.interfaces.server.chat.run_spec import RunSpec
from graph_agent.interfaces.server.host import EARLY, RESULTS, Host, LivePart, call_end
from graph_agent.interfaces.server.monitoring import Metrics
from graph_agent.interfaces.server.problems import (
    BusySessionError,
    Kind,
    ProblemError,
    key_reused,
    problem_of_failure,
    stopping,
    superseded,
)
from graph_agent.models.stream_watch import ReasoningReader, ReplyForwarder, StreamForwarder
from graph_agent.session.driver import RunDriver, RunOptions
from graph_agent.session.results import DelegatePart

logger = logging.getLogger("graph_agent.server.chat.run")

_CALL_EVENTS = ("plan", "tool_call", "delegation_request", *RESULTS)
COMMENTARY = "commentary "
"""Beginning of the message ids of texts that an earlier run of the same request has emitted."""
_MOST_WAITING = 256
"""Parts that are queued for a slow client."""
_MOST_WAITING_CHARS = 500_000
"""Parts, and characters of their texts, that are queued for a slow client; when the queue is full, the run waits."""


@dataclass(frozen=True, slots=True)
class AnswerText:
    """A piece of the answer."""

    text: str
    message_id: str | None = None
    """Id of its message in the session; None if it is not known."""


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """A piece of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class MessageBreak:
    """The end of one of the answer's messages; text of another one follows."""


@dataclass(frozen=True, slots=True)
class CallEvents:
    """New events of the session's history, in order: plans with calls, and their calls if the run shows them."""

    events: list[StoredEvent]
    message_id: str | None = None
    """Id of the message with the calls of the plan among them; None without a plan."""


@dataclass(frozen=True, slots=True)
class ProgressUpdate:
    """Progress of the run: `{"type": "progress", "step", "action", "target"}`."""

    progress: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StateValues:
    """The values of the agent's output channels after a superstep."""

    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The end of the run; always the last part."""

    outcome: ChatOutcome


Part: TypeAlias = (
    AnswerText | ReasoningPiece | MessageBreak | CallEvents | ProgressUpdate | StateValues | DelegatePart | RunEnded
)


class _WaitingParts(asyncio.Queue[Part | BaseException]):
    """A queue that is full at a number of parts, or of their characters; the newest part may exceed the latter."""

    def _init(self, maxsize: int) -> None:
        """Prepare the queue; called by asyncio."""
        super()._init(maxsize)
        self.chars = 0
        """Characters of the texts that wait."""

    def _put(self, item: Part | BaseException) -> None:
        """Add a part; called by asyncio."""
        super()._put(item)
        self.chars += _chars_of(item)

    def _get(self) -> Part | BaseException:
        """Remove a part; called by asyncio."""
        item: Part | BaseException = super()._get()
        self.chars -= _chars_of(item)
        return item

    def full(self) -> bool:
        """Whether the next part has to wait."""
        return super().full() or self.chars >= _MOST_WAITING_CHARS


def _chars_of(part: Part | BaseException) -> int:
    """Return the characters of a part's texts."""
    match part:
        case AnswerText() | ReasoningPiece():
            return len(part.text)
        case CallEvents():
            return sum(len(text) for event in part.events if isinstance(text := event.get("content"), str))
        case DelegatePart():
            return len(text) if isinstance(text := getattr(part.part, "text", None), str) else 0
        case _:
            return 0


class ServerRun:
    """One run, in its own task, so that a client that disconnects or reads slowly cannot break it.

    The task starts with the construction. Read the run by `part`, and end it by `close`.

    Args:
        host: The open agent.
        spec: Graph, thread, input and context of the run.
        metrics: Counts the run.
        streams: Whether text is emitted as it is produced; otherwise each reply as a whole.
        between_pieces_s: Returns the minimum seconds between two pieces of a streamed answer.
        on_end: Called at the run's end, before the outcome is queued; not for a stopped run.
    """

    def __init__(
        self,
        host: Host,
        spec: RunSpec,
        metrics: Metrics,
        *,
        streams: bool,
        between_pieces_s: Callable[[], float] = lambda: BETWEEN_PIECES_S,
        on_end: Callable[[ServerRun], None] | None = None,
    ) -> None:
        self.spec = spec
        handle = AgentHandle(is_watched=spec.shows_delegates, in_foreground=not spec.session_id)
        self.driver = RunDriver(spec.graph, spec.thread, configurable=with_handle({}, handle))
        self.input = self.driver.input_run(spec.scope)
        self.following: asyncio.Task[None] | None = None
        """Task that runs the follow-ups after this run; None if there is none."""
        self.detached: asyncio.Task[None] | None = None
        """Task that waits for the run's end after its client has left; None if there is none."""
        self.release: Callable[[], None] = lambda: None
        """Releases the resources of the run's request, such as its slot; may be called repeatedly."""
        self._on_end = on_end
        self._begun = asyncio.Event()
        self._before = spec.scope.before
        spec.scope.before, spec.scope.begun = self._begin, self._show_early
        self._host = host
        self._metrics = metrics
        # A follower of a live run sees its answer as it is produced.
        self._streams = streams or host.live.is_read(spec.thread)
        self._live = contextlib.ExitStack()
        self._publish: Callable[[LivePart], None] = lambda part: None
        self._sent: dict[str | None, list[str]] = {}
        """Message id → the text of the message that was emitted, in pieces."""
        self._message_id: str | None = None
        """Id of the newest of these messages; None before the first."""
        self._emitted_plan = False
        """Whether text was emitted since the newest plan."""
        self._unsent = ""
        """Text of the newest plan with calls that no model streamed; empty once it is emitted."""
        self._plan_id: str | None = None
        """Id of the message with the newest plan's calls; None before the first."""
        self._open_calls: dict[str, datetime] = {}
        self._control = RunControl()
        self._parts = _WaitingParts(_MOST_WAITING)
        self._pieces = TextCoalescer(self._put_text, between_pieces_s)
        self._closed = False
        self.ended = False
        """Whether the run has ended; its last part may still be queued."""
        self.is_answered = False
        """Whether its client was sent the whole answer, which is not a failure."""
        self._task = asyncio.create_task(self._run(), name=f"run of {spec.session_id or 'a request'}")

    @property
    def waiting_chars(self) -> int:
        """Characters of the texts that wait for the client."""
        return self._parts.chars

    async def part(self, timeout_s: float | None = None) -> Part | None:
        """Return the next part, `RunEnded` last; None after `timeout_s` seconds without one.

        Raises `ProblemError` if the run was refused, failed or stopped.
        """
        if not self._parts.empty():
            part = self._parts.get_nowait()
        else:
            try:
                async with asyncio.timeout(timeout_s):
                    part = await self._parts.get()
            except TimeoutError:
                return None
        if isinstance(part, BaseException):
            raise part
        return part

    async def begun(self) -> None:
        """Wait until the run has its session.

        Raises `ProblemError` if it ends before, e.g. if another run has the session.
        """
        waiting = asyncio.create_task(self._begun.wait())
        try:
            await asyncio.wait([waiting, self._task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not self._begun.is_set():
            await self.part()

    async def _begin(self) -> None:
        """Prepare the run once it holds the lock of its session.

        A repeated request first emits the texts of its earlier run.
        """
        if self._before is not None:
            await self._before()
        if self.spec.session_id is not None:
            self._publish = self._live.enter_context(self._host.live.run(self.spec.thread, _question(self.spec)))
        if (mark := self.spec.scope.mark) is not None:
            newest = await load(self._host.saver, {"configurable": {"thread_id": self.spec.thread}})
            if newest is not None and input_id_in(newest.metadata) == mark:
                await self._emit_commentary(await self.spec.graph.aget_state(self.spec.config))
        self._begun.set()

    def _show_early(self, seq: int, events: Sequence[StoredEvent]) -> None:
        """Publish the first events of a superstep that are not stored yet; `seq` is the index of the first."""
        self._publish({"type": EARLY, "seq": seq, "events": events})

    def drain(self) -> None:
        """Let the run stop at its next superstep boundary, from which its session can be resumed; returns at once."""
        self._control.request_drain()

    async def finish(self) -> None:
        """Drop the parts from now on, and wait for the end of the run."""
        self._drop_parts()
        await asyncio.wait([self._task])

    def cancel(self) -> None:
        """Cancel the run immediately; returns at once."""
        self._task.cancel()

    async def close(self) -> None:
        """Stop the run if it is active, and wait for its end.

        A run in a session is aborted, so that its calls are settled in the history; a run without a session is only
        cancelled. Only this run is aborted, not another one that holds the session.
        """
        self._drop_parts()
        if not self.ended and self.spec.session_id is not None:
            self.spec.scope.abort()
        elif not self.ended:
            self._task.cancel()
        await asyncio.wait([self._task])

    def _drop_parts(self) -> None:
        """Empty the queue, and queue no more parts."""
        self._closed = True
        # An ended run may still wait for space in the queue.
        while not self._parts.empty():
            self._parts.get_nowait()

    async def _run(self) -> None:
        """Execute the run, and emit its outcome, or why there is none, as the last part."""
        started = time.perf_counter()
        status = "CANCELLED"
        last: Part | BaseException
        try:
            last = RunEnded(await self._to_end())
            status = last.outcome.status
        except GraphDrained:
            status, last = "DRAINED", stopping(self.spec.session_id)
        except SessionBusyError:
            status, last = "BUSY", BusySessionError(f"{self.spec.session_label} is answering another request.")
        except InputConflictError:
            status, last = "REFUSED", key_reused()
        except InputSupersededError:
            status, last = "REFUSED", superseded(self.spec.session_label)
        except UserError as error:
            # An unknown question was answered between the reading of the session and its lock.
            kind: Kind = "conflict" if isinstance(error.__cause__, UnknownInterruptError) else "invalid"
            status, last = "REFUSED", ProblemError(kind, str(error))
        except ProblemError as problem:
            status, last = "REFUSED", problem
        except asyncio.CancelledError:
            last = stopping(self.spec.session_id)
        except Exception as error:  # noqa: BLE001 - any failure must reach the waiting reader
            log_failure(logger, "A run", error)
            status, last = "FAILED", problem_of_failure(error)
        cleanup = asyncio.ensure_future(self._clean_up(status))
        while not cleanup.done():
            # A second cancellation must not interrupt the cleanup.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([cleanup])
        if not cleanup.cancelled() and (failure := cleanup.exception()) is not None:
            log_failure(logger, "Cleaning up after a run", failure)
        self._metrics.count_run(status, time.perf_counter() - started)
        self.ended = True
        self._live.close()
        if self._on_end is not None and self.input.state is not None and not self.input.aborted:
            self._on_end(self)
        await self._emit(last)
        # They refer to this object. Without cycles, the memory of an ended run needs no garbage collection.
        self.spec.scope.before = self.spec.scope.begun = self.spec.scope.forwarder = None
        self._pieces.close()

    async def _emit(self, part: Part | BaseException) -> None:
        """Emit a part after the text before it, and publish it for those who follow the session."""
        await self._pieces.flush()
        if isinstance(part, MessageBreak):
            self._publish({"type": "break"})
        elif isinstance(part, ProgressUpdate):
            self._publish(part.progress)
        await self._put(part)

    async def _put_text(self, text: str) -> None:
        """Emit a piece of text, and publish it."""
        self._publish({"type": "text", "text": text})
        await self._put(AnswerText(text, self._message_id))

    async def _put(self, part: Part | BaseException) -> None:
        """Queue a part, and wait while the queue is full; drops it once the run is closed."""
        if not self._closed:
            await self._parts.put(part)

    async def _to_end(self) -> ChatOutcome:
        """Execute the graph, emit the parts, and return the outcome."""
        spec = self.spec
        if spec.token is not None and not (spec.is_attempt and not spec.is_resume):
            await self._host.suspend(spec.thread)
        if not spec.is_structured:
            # A structured answer may take several attempts; only the last one is sent, as a whole.
            spec.scope.forwarder = partial(StreamForwarder if self._streams else ReplyForwarder, self._on_text)
        await self._consume_stream()
        state = self.input.state
        assert state is not None, "a run that reaches its end reads its state"
        if self.input.replayed:
            before = await self._emit_commentary(state)
            spec = replace(spec, used_before=before.get("usage", NO_USAGE))
        if state.interrupts:
            await self._send_plan()
        outcome = read_outcome(spec, state, {id_: "".join(pieces) for id_, pieces in self._sent.items()})
        if outcome.rest and self._sent and not outcome.continues:
            await self._emit(MessageBreak())
        if not self.input.replayed:
            self._metrics.count_tokens(outcome.input_tokens, outcome.output_tokens)
        return outcome

    async def _emit_commentary(self, state: StateSnapshot) -> Mapping[str, Any]:
        """Emit the texts of an earlier run of the request; return the state of the input before the request."""
        before = await self._before_request(state)
        # Before its first plan, a request has no text, and in its first checkpoint, which is of its input, no message.
        is_input = (state.metadata or {}).get("source") == "input"
        is_begun = not (is_input or new_user_messages(state.values.get("messages", []), _input_of(state.values) or ""))
        if not self._sent and is_begun:
            for number, text in enumerate(commentary_of(self.spec, state, before)):
                await self._on_text(text, f"{COMMENTARY}{number}")
        return before

    async def _before_request(self, state: StateSnapshot) -> Mapping[str, Any]:
        """Return the state of the input before the request that a state belongs to; empty for a new input."""
        mark, config = self.spec.scope.mark, state.parent_config
        if mark is None or state.metadata is None or input_id_in(state.metadata) != mark:
            return {}
        is_new = state.metadata.get("source") == "input"
        while config is not None and not is_new:
            earlier = await load(self._host.saver, config)
            if earlier is None:
                return {}
            if input_id_in(earlier.metadata) != mark:
                values: Mapping[str, Any] = (await self.spec.graph.aget_state(config)).values
                # After `prune`, the checkpoint before may be one of an earlier input.
                return values if _input_of(values) == _input_of(state.values) else {}
            is_new, config = earlier.metadata.get("source") == "input", earlier.parent_config
        return {}

    async def _consume_stream(self) -> None:
        """Execute the graph, and emit plans, calls, progress, reasoning and state from its stream."""
        spec = self.spec
        shows_reasoning = spec.shows_reasoning and not spec.is_structured
        reader = ReasoningReader(lambda text: self._emit(ReasoningPiece(text)))
        options = RunOptions(
            # Failures are reported by the outcome.
            {**spec.context, "on_failure": "answer"},
            self._control,
            modes=("custom", "updates", *(("values",) if spec.shows_state else ())),
            callbacks=[reader] if shows_reasoning else [],
        )
        async with contextlib.aclosing(self.driver.chunks(self.input, spec.graph_input, options)) as chunks:
            async for mode, payload in chunks:
                if mode == "updates":
                    self._metrics.count(payload, self._open_calls)
                    if events := _call_events(payload):
                        for event in events:
                            if event["type"] in RESULTS:
                                self._publish(call_end(event))
                        await self._emit_calls(events, _planned_message(payload))
                elif mode == "values":
                    await self._emit(StateValues(payload))
                elif isinstance(payload, DelegatePart):
                    await self._emit(payload)
                elif is_progress(payload):
                    await self._emit(ProgressUpdate(payload))

    async def _on_text(self, text: str, message_id: str | None) -> None:
        """Emit a piece of text of the message with this id, after the end of the message before."""
        # Text before calls, and an answer superseded by steering, are separate messages.
        if self._sent and message_id not in self._sent:
            await self._emit(MessageBreak())
        self._message_id = message_id
        self._sent.setdefault(message_id, []).append(text)
        self._emitted_plan = True
        await self._pieces.add(text)

    async def _emit_calls(self, events: list[StoredEvent], message_id: str | None) -> None:
        """Emit plans with calls, and events about calls if they are shown, after plan text that was not streamed."""
        self._plan_id = message_id or self._plan_id
        plans = [event for event in events if event["type"] == "plan"]
        with_calls = [plan for plan in plans if plan["calls"]]
        for plan in with_calls:
            self._unsent = "" if self._emitted_plan or self.spec.is_structured else plan["reasoning"]
            if self.spec.shows_calls:
                await self._send_plan()
        if shown := events if self.spec.shows_calls else with_calls:
            await self._emit(CallEvents(shown, message_id))
        if plans:
            self._emitted_plan = False

    async def _send_plan(self) -> None:
        """Emit the text of the newest plan, if no model streamed it."""
        if self._unsent:
            # A message that was streamed already has its text from the model.
            known = self._plan_id if self._plan_id not in self._sent else None
            await self._on_text(self._unsent, known or f"plan {len(self._sent)}")
            self._unsent = ""

    async def _clean_up(self, status: str) -> None:
        """Delete the thread of a request without a session if no request can resume it.

        `status` is how the run ended.
        """
        spec = self.spec
        if (
            spec.token is not None
            and spec.scope.mark is None
            and status not in ("RUNNING", "BUSY")
            and not await self._can_resume()
        ):
            await self._host.forget(spec.thread)

    async def _can_resume(self) -> bool:
        """Return whether a request may still resume the thread."""
        # A caller whose run was stopped after it had sent results may send them again.
        spec = self.spec
        return spec.is_resume and bool((await spec.graph.aget_state(spec.config)).tasks)


def _question(spec: RunSpec) -> Any:
    """Return the content of the message that begins a run; None for a run that resumes."""
    messages = [] if spec.is_resume else spec.graph_input.get("messages", [])
    return messages[-1].content if messages else None


def _call_events(updates: Mapping[str, Any]) -> list[StoredEvent]:
    """Return the events of one item of LangGraph's `updates` stream that are about plans and calls."""
    events: list[StoredEvent] = []
    for change in changes_in(updates):
        events += change.get("events", ())
    return [event for event in events if event["type"] in _CALL_EVENTS]


def _planned_message(updates: Mapping[str, Any]) -> str | None:
    """Return the id of the message with calls in one item of LangGraph's `updates` stream; None without one."""
    for change in changes_in(updates):
        written = change.get("messages")
        for message in reversed(written) if isinstance(written, list) else ():
            if isinstance(message, AIMessage) and message.tool_calls:
                return message.id
    return None


def _input_of(values: Mapping[str, Any]) -> str | None:
    """Return the id of the user message of a state's newest input; None before the first."""
    loop = values.get("loop") or {}
    return loop.get("last_input_id") or None
