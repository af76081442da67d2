"""Runs a chat request: yields its output parts; can be drained, cancelled or closed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeAlias, cast

from langgraph.errors import GraphDrained, UnknownInterruptError
from langgraph.runtime import RunControl
from langgraph.types import Command, StateSnapshot

from graph_agent.base._internal.closing_stream import BETWEEN_PIECES_S
from graph_agent.base._internal.failure_log import log_failure
from graph_agent.base.errors import InputConflictError, InputSupersededError, SessionBusyError, UserError
from graph_agent.base.history.events import StoredEvent
from graph_agent.base.input_ids import input_id_in
from graph_agent.base.input_messages import new_user_messages
from graph_agent.base.types import NO_USAGE
from graph_agent.interfaces.server import problems
from graph_agent.interfaces.server.chat.outcomes import ChatOutcome, commentary_of, read_outcome, text_of_event
from graph_agent.interfaces.server.chat.run_spec import RunSpec
from graph_agent.interfaces.server.feeds import EARLY, RESULTS, LivePart, call_end
from graph_agent.interfaces.server.host import Host
from graph_agent.interfaces.server.metrics import Metrics
from graph_agent.session.driver import RunDriver, RunOptions, RunOutput, TextSource
from graph_agent.session.interrupts import standing_answers
from graph_agent.session.results import DelegatePart, EventAdded, Progress, Reasoning, ServedPart, StateValues, Token

logger = logging.getLogger("graph_agent.server.chat.run")

_CALL_EVENTS = ("plan", "tool_call", "delegation_request", *RESULTS)
COMMENTARY = "commentary "
"""Prefix of the message ids of texts that an earlier run of the same request has produced, and that are sent again."""
_MOST_WAITING = 256
"""Maximum number of parts that are queued for a slow client."""
_MOST_WAITING_CHARS = 500_000
"""Maximum characters of the queued parts. If a maximum is reached, the run waits for the client."""


@dataclass(frozen=True, slots=True)
class MessageBreak:
    """The end of one of the answer's messages; the text of another message follows."""


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The end of the run, which is always the last part."""

    outcome: ChatOutcome


Part: TypeAlias = Token | Reasoning | MessageBreak | EventAdded | Progress | StateValues | DelegatePart | RunEnded
"""A part of a run's output: a part of the session's stream, the end of a message, or the end of the run.

A `Token` is a piece of the answer. An `EventAdded` is a plan with calls or, if the run shows its calls, any plan, or
the start or the result of a call.
"""


class _WaitingParts(asyncio.Queue[Part | BaseException]):
    """A queue that is full at a number of parts, or at a number of characters; the newest part may exceed the
    latter.
    """

    chars: int = 0
    """Characters of the texts that wait."""

    def _put(self, item: Part | BaseException) -> None:
        """Add a part. asyncio calls it."""
        super()._put(item)
        self.chars += _chars_of(item)

    def _get(self) -> Part | BaseException:
        """Remove and return a part. asyncio calls it."""
        item: Part | BaseException = super()._get()
        self.chars -= _chars_of(item)
        return item

    def full(self) -> bool:
        """Return whether the next part has to wait."""
        return super().full() or self.chars >= _MOST_WAITING_CHARS


def _chars_of(part: Part | BaseException) -> int:
    """Return the number of characters of a part's text: of the answer, reasoning, an event or a delegate; 0 for other
    parts.
    """
    match part:
        case Token() | Reasoning():
            return len(part.text)
        case EventAdded(event):
            return len(text) if isinstance(text := event.get("content"), str) else 0
        case DelegatePart():
            return len(text) if isinstance(text := getattr(part.part, "text", None), str) else 0
        case _:
            return 0


class ServerRun:
    """One run in a task of its own, so that a client that disconnects or reads slowly cannot interrupt it.

    The task starts with the construction. Read the output by `part`, and end the run by `close`.

    Args:
        host: The open agent.
        spec: Graph, thread, input and context of the run.
        metrics: Counts the run.
        streams: Whether text is emitted as it is produced; otherwise as a whole, once its event is in the history.
        between_pieces_s: Returns the minimum seconds between two pieces of a streamed answer.
        on_end: Called at the run's end, before its last part can be read; not called for a stopped run.
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
        self.driver = RunDriver(spec.graph, spec.thread, in_foreground=not spec.session_id)
        self.input = self.driver.input_run(spec.scope)
        self.following: asyncio.Task[None] | None = None
        """Task that runs the follow-ups after this run; None if there is none."""
        self.detached: asyncio.Task[None] | None = None
        """Task that waits for the run's end after its client has left; None if there is none."""
        self.release: Callable[[], None] = lambda: None
        """Releases the resources of the run's request, such as its slot. It may be called repeatedly."""
        self._on_end = on_end
        self._begun = asyncio.Event()
        self._before = spec.scope.before
        spec.scope.before = self._begin
        self._host = host
        self._metrics = metrics
        # A follower of a live run sees its answer as it is produced.
        self._streams = streams or host.live.is_read(spec.thread)
        self._live = contextlib.ExitStack()
        self._publish: Callable[[LivePart], None] | None = None
        """Sends a part to the followers of the session; None for a request without a session."""
        self._sent: dict[str, list[str]] = {}
        """Message id → pieces of the message's text that were emitted."""
        self._emitted_plan = False
        """Whether text was emitted since the newest plan began."""
        self._unsent = ""
        """Text of the newest plan that was not streamed, until it is emitted; otherwise empty."""
        self._answer = ""
        """Newest answer of a run without streaming, which is emitted only if another text follows it; else empty."""
        self._plan_id: str | None = None
        """Id of the message with the newest plan; None before the first."""
        self._open_calls: dict[str, datetime] = {}
        self._control = RunControl()
        self._parts = _WaitingParts(_MOST_WAITING)
        self._between_pieces_s = between_pieces_s
        self._postponed: list[Part | BaseException] | None = None
        """Parts that are collected at the end of the run and queued after it; None at any other time."""
        self._closed = False
        self.ended = False
        """Whether the run has ended. Parts of it may still be queued."""
        self.is_answered = False
        """Whether the client was sent the whole answer of a run that did not fail."""
        self._task = asyncio.create_task(self._run(), name=f"run of {spec.session_id or 'a request'}")

    @property
    def waiting_chars(self) -> int:
        """Characters of the texts that are queued for the client."""
        return self._parts.chars

    async def part(self, timeout_s: float | None = None) -> Part | None:
        """Wait for the next part and return it; None after `timeout_s` seconds without one (None waits without a
        limit).

        `RunEnded` is the last part, after which this would wait forever. Raises `ProblemError` in its place if the run
        was refused, failed or was stopped.
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
        """Wait until the run holds its session's lock and has begun, so that it cannot be refused any more.

        Raises `ProblemError` if the run ends before that, e.g. because another run holds the session.
        """
        waiting = asyncio.create_task(self._begun.wait())
        try:
            await asyncio.wait([waiting, self._task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not self._begun.is_set():
            await self.part()

    async def _begin(self) -> None:
        """Prepare the run once it holds the lock of its session; `begun` then returns.

        First the request's own check is awaited, which may refuse the run. Then the output is published to followers,
        and if the request was run before, the texts of the earlier run are emitted.
        """
        if self._before is not None:
            await self._before()
        if self.spec.session_id is not None:
            self._publish = self._live.enter_context(self._host.live.run(self.spec.thread, _question(self.spec)))
        if (mark := self.spec.scope.mark) is not None:
            newest = await self._host.saver.aget_tuple({"configurable": {"thread_id": self.spec.thread}})
            if newest is not None and input_id_in(newest.metadata) == mark:
                await self._emit_commentary(await self.spec.graph.aget_state(self.spec.config))
        self._begun.set()

    def drain(self) -> None:
        """Make the run stop at its next superstep boundary, from which its session can be resumed.

        Does not wait for it.
        """
        self._control.request_drain()

    async def finish(self) -> None:
        """Drop all further parts, and wait for the end of the run."""
        self._drop_parts()
        await asyncio.wait([self._task])

    def cancel(self) -> None:
        """Cancel the task of the run. Does not wait for it."""
        self._task.cancel()

    async def close(self) -> None:
        """Stop the run if it is active, wait for its end, and drop its parts, also those that are queued.

        A run in a session is aborted, so that its calls get results in the history; a run without a session is only
        cancelled. Another run that holds the session is not affected.
        """
        self._drop_parts()
        if not self.ended:
            self.spec.scope.abort() if self.spec.session_id is not None else self._task.cancel()
        await asyncio.wait([self._task])

    def _drop_parts(self) -> None:
        """Empty the queue, and drop all further parts."""
        self._closed = True
        # An ended run may still wait for space in the queue.
        while not self._parts.empty():
            self._parts.get_nowait()

    async def _run(self) -> None:
        """Execute the run to its end, clean up, and emit the outcome, or the reason why there is none, as the last
        part.

        Never raises. The reason is a `ProblemError`: the server is stopping (also after a cancellation), another
        request holds the session, the idempotency key belongs to another request or an outdated one, the input was
        refused, or an unexpected exception, which is logged. The run is counted in the metrics by the session's status,
        or by `CANCELLED`, `DRAINED`, `BUSY`, `REFUSED` or `FAILED`.
        """
        started = time.perf_counter()
        status = "CANCELLED"
        last: Part | BaseException
        try:
            last = RunEnded(await self._to_end())
            status = last.outcome.status
        except GraphDrained:
            status, last = "DRAINED", problems.stopping(self.spec.session_id)
        except SessionBusyError:
            status, last = "BUSY", problems.BusySessionError(f"{self.spec.session_label} is answering another request.")
        except InputConflictError:
            status, last = "REFUSED", problems.key_reused()
        except InputSupersededError:
            status, last = "REFUSED", problems.superseded(self.spec.session_label)
        except UserError as error:
            # An unknown question was answered between the reading of the session and its lock.
            kind: problems.Kind = "conflict" if isinstance(error.__cause__, UnknownInterruptError) else "invalid"
            status, last = "REFUSED", problems.ProblemError(kind, str(error))
        except problems.ProblemError as problem:
            status, last = "REFUSED", problem
        except asyncio.CancelledError:
            last = problems.stopping(self.spec.session_id)
        except Exception as error:  # noqa: BLE001 - any failure must reach the waiting reader
            log_failure(logger, "A run", error)
            status, last = "FAILED", problems.problem_of_failure(error)
        # A request without a session whose thread no later request continues.
        if self.spec.token is not None and self.spec.scope.mark is None and status not in ("RUNNING", "BUSY"):
            cleanup = asyncio.ensure_future(self._clean_up())
            while not cleanup.done():
                # A second cancellation must not interrupt the cleanup.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([cleanup])
            if not cleanup.cancelled() and (failure := cleanup.exception()) is not None:
                log_failure(logger, "Cleaning up after a run", failure)
        self._metrics.count_run(status, time.perf_counter() - started)
        # The client may not read for long, for which the end of the run must not wait.
        self._postponed = []
        # A run that was stopped in the middle of a reply leaves text that nothing has taken.
        for part in self.input.parts.unread() if self.input.parts is not None else ():
            await self._translate(part)
        postponed, self._postponed = self._postponed, None
        self.ended = True
        self._live.close()
        if self._on_end is not None and self.input.state is not None and not self.input.aborted:
            self._on_end(self)
        # They refer to this object. Without cycles, the memory of an ended run needs no garbage collection.
        self.spec.scope.before = self.spec.scope.forwarder = self.input.handle.forwarder = self.input.parts = None
        for rest in (*postponed, last):
            await self._put(rest)

    async def _put(self, part: Part | BaseException, live: LivePart | None = None) -> None:
        """Queue a part, waiting while the queue is full. Drops the part if the run is closed.

        At the end of the run, the part is only added to `_postponed`.
        """
        if live is not None and self._publish is not None:
            self._publish(live)
        if self._closed:
            return
        if self._postponed is None:
            await self._parts.put(part)
        else:
            self._postponed.append(part)

    async def _to_end(self) -> ChatOutcome:
        """Record the thread as suspended if a later request may resume it, execute the graph, emit its parts, and
        return the outcome. The run's tokens are counted in the metrics.

        For a request whose input was answered before, the text of the stored answer is emitted, and nothing is counted.
        """
        spec = self.spec
        if spec.token is not None and not (spec.is_attempt and not spec.is_resume):
            await self._host.suspend(spec.thread)
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
            await self._end_message()
        if not self.input.replayed:
            self._metrics.count_tokens(outcome.input_tokens, outcome.output_tokens)
        return outcome

    async def _emit_commentary(self, state: StateSnapshot) -> Mapping[str, Any]:
        """Emit the texts that an earlier run of this request produced before its last message.

        Does nothing if text was emitted already, or the request has not reached its first plan. Returns the state of
        the input before the request; empty if the request began the input.
        """
        before = await self._before_request(state)
        # Before its first plan, a request has no text, and in its first checkpoint, which is of its input, no message.
        is_input = (state.metadata or {}).get("source") == "input"
        is_begun = not (is_input or new_user_messages(state.values.get("messages", []), _input_of(state.values) or ""))
        if not self._sent and is_begun:
            for number, text in enumerate(commentary_of(self.spec, state, before)):
                await self._on_text(Token(text, message_id=f"{COMMENTARY}{number}"))
        return before

    async def _before_request(self, state: StateSnapshot) -> Mapping[str, Any]:
        """Return the values of the thread's state before this request, which resumed the thread's newest input.

        Empty if the request began this input, the newest input is another one, or the earlier checkpoints were deleted.
        """
        mark, config = self.spec.scope.mark, state.parent_config
        if mark is None or state.metadata is None or input_id_in(state.metadata) != mark:
            return {}
        is_new = state.metadata.get("source") == "input"
        while config is not None and not is_new:
            earlier = await self._host.saver.aget_tuple(config)
            if earlier is None:
                return {}
            if input_id_in(earlier.metadata) != mark:
                values: Mapping[str, Any] = (await self.spec.graph.aget_state(config)).values
                # After `prune`, the checkpoint before may be one of an earlier input.
                return values if _input_of(values) == _input_of(state.values) else {}
            is_new, config = earlier.metadata.get("source") == "input", earlier.parent_config
        return {}

    async def _consume_stream(self) -> None:
        """Execute the graph, and emit the parts of its stream.

        If earlier decisions of the session answer all questions at which the run stops, the run continues with these
        answers as a new input. The answer is emitted token by token if the client or a follower streams, and otherwise
        reply by reply; a structured answer is not emitted here at all.
        """
        spec = self.spec
        # A structured answer may take several attempts; only the last one is sent, as a whole.
        text: TextSource = "none" if spec.is_structured else "tokens" if self._streams else "replies"
        output = RunOutput(text, self._between_pieces_s, values=spec.shows_state, delegates=spec.shows_delegates)
        # Failures are reported by the outcome.
        context = self._host.context_of(spec.thread, {**spec.context, "on_failure": "answer"})
        # A follower of a live run sees its reasoning, too; its client only if it asked for it.
        reasoning = (spec.shows_reasoning or self._host.live.is_read(spec.thread)) and not spec.is_structured
        options = RunOptions(context, self._control, output=output, reasoning=reasoning)
        given = spec.graph_input
        while True:
            async with contextlib.aclosing(self.driver.input_parts(self.input, given, options)) as parts:
                async for part in parts:
                    await self._translate(part)
            if (answers := await self._standing_answers()) is None:
                return
            self.driver.abort_with(spec.scope)
            self.input, given = self.driver.input_run(), Command(resume=answers)

    async def _standing_answers(self) -> dict[str, Any] | None:
        """Return answers to the open questions, interrupt id → answer, if earlier decisions of the session answer all
        of them.

        Otherwise None, and also for a run that has no session, was aborted, or repeats a stored answer.
        """
        state = self.input.state
        has_questions = state is not None and bool(state.interrupts) and not self.input.replayed
        if state is None or not has_questions or self.input.aborted or self.spec.session_id is None:
            return None
        return await standing_answers(state, self.driver.control.noted_events)

    async def _translate(self, part: ServedPart) -> None:
        """Emit a part of the session's stream to the client, and publish it to followers, as far as each receives it.

        Text, progress and reasoning are published; the client receives reasoning only if it asked for it. Values of the
        state and parts of delegates are for the client alone. Events go to `_on_event`. Other parts, also text that is
        not the model's, are dropped.
        """
        match part:
            case Token(is_from_model=True):
                await self._on_text(part)
            case EventAdded():
                await self._on_event(part)
            case Progress():
                await self._put(part, progress_fields(part))
            case Reasoning():
                if self._publish is not None:
                    self._publish({"type": "reasoning", "text": part.text})
                if self.spec.shows_reasoning:
                    await self._put(part)
            case StateValues() | DelegatePart():
                await self._put(part)
            case _:
                pass

    async def _on_text(self, piece: Token) -> None:
        """Emit a piece of the answer's text, to the client and to followers, and record that it was sent.

        If it begins another message than the last piece, the end of that message is emitted before.
        """
        # Text before calls, and an answer superseded by steering, are separate messages.
        if self._sent and piece.message_id not in self._sent:
            await self._end_message()
        self._sent.setdefault(piece.message_id, []).append(piece.text)
        self._emitted_plan = True
        await self._put(piece, {"type": "text", "text": piece.text})

    async def _end_message(self) -> None:
        """Emit the end of a message, to the client and to followers."""
        await self._put(MessageBreak(), {"type": "break"})

    async def _on_event(self, part: EventAdded) -> None:
        """Count an event, and emit it to the client if it is a plan with calls, or if it belongs to a call that the run
        shows. Early events and results of calls are published to followers.

        Before a plan with calls, its text is emitted if it was not streamed. In a run without streaming, commentary and
        replaced answers are emitted, too.
        """
        event = cast("StoredEvent", part.event)
        self._metrics.count(event, self._open_calls)
        if self._publish is not None and part.is_early:
            # The history does not store these two fields.
            stored = {name: value for name, value in event.items() if name not in ("seq", "session_id")}
            self._publish({"type": EARLY, "seq": part.event["seq"], "events": [stored]})
        if event["type"] in RESULTS:
            self._emitted_plan = False
            if self._publish is not None:
                self._publish(call_end(event))
        is_plan, has_calls = event["type"] == "plan", bool(event.get("calls"))
        text = "" if self._streams else text_of_event(self.spec, event)
        if text and not is_plan:
            await self._hold(text, is_answer=event["type"] == "agent_response")
        if event["type"] not in _CALL_EVENTS:
            return
        self._plan_id = part.message_id or self._plan_id
        if is_plan and has_calls:
            self._unsent = "" if self._emitted_plan or self.spec.is_structured else event["reasoning"]
            if self.spec.shows_calls or text:
                await self._hold("")
                await self._send_plan()
        if self.spec.shows_calls or (is_plan and has_calls):
            await self._put(part)
        if is_plan:
            self._emitted_plan = False

    async def _hold(self, text: str, *, is_answer: bool = True) -> None:
        """Emit the answer that is held, and hold `text` in its place, or emit `text`, too, if it is not an answer."""
        texts, self._answer = ([self._answer], text) if is_answer else ([self._answer, text], "")
        for each in filter(None, texts):
            await self._on_text(Token(each, message_id=f"text {len(self._sent)}"))
            self._emitted_plan = False

    async def _send_plan(self) -> None:
        """Emit the text of the newest plan as one piece, unless it was streamed or emitted before."""
        if self._unsent:
            # A message that was streamed already has its text from the model.
            known = self._plan_id if self._plan_id not in self._sent else None
            await self._on_text(Token(self._unsent, message_id=known or f"plan {len(self._sent)}"))
            self._unsent = ""

    async def _clean_up(self) -> None:
        """Delete the thread of the run, unless a stopped run can be resumed by sending the same results again."""
        spec = self.spec
        if not (spec.is_resume and (await spec.graph.aget_state(spec.config)).tasks):
            await self._host.forget(spec.thread)


def _question(spec: RunSpec) -> Any:
    """Return the content of the last message of the input, which followers see at once; None for a run that resumes."""
    messages = [] if spec.is_resume else spec.graph_input.get("messages", [])
    return messages[-1].content if messages else None


def progress_fields(progress: Progress) -> dict[str, Any]:
    """Return progress as clients receive it: `{"type": "progress", "step", "action", "target"}`."""
    return {"type": progress.type, "step": progress.step, "action": progress.action, "target": progress.target}


def _input_of(values: Mapping[str, Any]) -> str | None:
    """Return the id of the user message of the newest input in a state; None before the first."""
    loop = values.get("loop") or {}
    return loop.get("last_input_id") or None
