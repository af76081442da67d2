"""Drives the runs of one session: each input with an id runs once, and the queued follow-ups run after it.

An input is one message of a user with everything up to its answer; its sender may give it an id, so that a repetition
runs it only once. Its mark is that id with a digest of the content. A follow-up is an input that was queued while
another one ran, as a note in the session's inbox.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, cast

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import UnknownInterruptError
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, Interrupt, PregelTask, StateSnapshot

from graph_agent.base._compat import INTERRUPT, STRICT_RESUME
from graph_agent.base._internal.closing_stream import ConsumerTracker
from graph_agent.base._internal.failure_log import log_failure
from graph_agent.base._internal.polling import POLL_S
from graph_agent.base._internal.text import brief_repr
from graph_agent.base.errors import ConfigError, InputError, SessionBusyError
from graph_agent.base.inbox import ControlMessage
from graph_agent.base.input_ids import InputId, InputStoredError, check_input_id, digest_of, input_id_in
from graph_agent.base.settings.config import checked_context, effective_config
from graph_agent.base.types import SessionStatus
from graph_agent.core.state.notes import note_message
from graph_agent.core.state.own_checkpoint import load
from graph_agent.core.state.registry import find_run, is_idle, refuse_within
from graph_agent.core.state.run import Run, handle_of, with_handle
from graph_agent.core.state.run import RunHandle as RunHandle  # interfaces pass it to `RunDriver`
from graph_agent.session.built_agent import builder_of, custom_state_of
from graph_agent.session.control import SessionControl
from graph_agent.session.results import Cause, RunResult, open_interrupts, run_result, typed_result
from graph_agent.storage.checkpoints.format import with_own_lists

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from langgraph.runtime import RunControl
    from langgraph.types import StreamMode

    from graph_agent.session.deduplicator import InputDeduplicator
    from graph_agent.session.interrupts import AutoApproval, OnApproval
    from graph_agent.session.reply_buffer import ReplyBuffer
    from graph_agent.session.results import Part, RunPart, ServedPart
    from graph_agent.session.stream_parts import StreamParts

logger = logging.getLogger(__name__)
_FOLLOW_UP_S = 10.0
"""Maximum seconds for finding a follow-up after an input."""
_LATE_FOLLOW_UP_S = 2.0
"""Maximum seconds for finding a follow-up after an input whose deadline has passed."""
_BEGINNING_S = 1.0
"""Seconds in which a run of another process may store its input, so that it is recognized as the same input."""
TextSource = Literal["tokens", "replies", "none"]
"""How the reader receives the text of replies: in pieces as it is produced, each with its event in the history, or not
before the end.
"""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of the run of an input, and of the runs of follow-ups after it."""

    context: Any = None
    """The context of the runs, with overrides of the configuration and credentials."""
    control: RunControl | None = None
    """Can stop the runs at their next superstep boundary; None for no such control."""
    on_approval: OnApproval | None = None
    """Decides on calls that wait for approval; None for the callback of the driver."""
    readership: ConsumerTracker | None = None
    """Tracks the consumer that reads every part of the stream; None if only the results are read."""
    output: RunOutput | None = None
    """Which parts `RunDriver.input_parts` yields for a run without `readership`; None if it yields no parts."""
    reasoning: bool = False
    """Whether the reasoning of the agent's model is among the parts."""


@dataclass(frozen=True, slots=True)
class RunOutput:
    """Which parts of a run a server receives. The result of a call is yielded as soon as the call has ended.

    Events are in the order in which calls end. Only early events have their `seq` in the history.
    """

    text: TextSource = "tokens"
    every_s: Callable[[], float] = lambda: 0.0
    """Returns the minimum seconds between two pieces of text."""
    values: bool = False
    """Whether the state after each superstep is included."""
    delegates: bool = False
    """Whether the parts of delegates' runs are included."""


@dataclass(eq=False, slots=True)
class InputRun:
    """The run of one input. The graph reports the end of the run before another run of the session can begin."""

    handle: RunHandle
    """Handle of the run, by which only this run is aborted."""
    state: StateSnapshot | None = None
    """State of the session at the end of the input; None before the end, and for a stopped run.

    Graphs of other packages do not report their end.
    """
    replayed: bool = False
    """Whether the input was not run, because it has a stored result."""
    aborted: bool = False
    """Whether the run was aborted, even if its answer was complete by then."""
    ended: Run | None = None
    """The run of the graph, once it has ended; None before."""
    parts: StreamParts | None = None
    """Converts the chunks of the graph to parts; None before the start, and if no parts are wanted."""


class RunDriver:
    """Drives the runs of one session, for every program that runs an input: `Session`, the server and its A2A tasks.

    Args:
        graph: The compiled agent.
        session_id: Id of the session.
        configurable: Additional keys of the runs' `configurable`.
        approval: Answers approval requests by a callback or by earlier decisions; None to leave them open.
        in_foreground: Whether the session ends with the answer of a run, so that delegations must not continue in the
            background.
    """

    def __init__(
        self,
        graph: CompiledStateGraph[Any, Any, Any, Any],
        session_id: str,
        *,
        configurable: Mapping[str, Any] | None = None,
        approval: AutoApproval | None = None,
        in_foreground: bool = False,
    ) -> None:
        self.id = session_id
        """The id of the session."""
        self._graph = graph
        self._stores = isinstance(graph.checkpointer, BaseCheckpointSaver)
        self._approval = approval
        self._configurable: dict[str, Any] = {**(configurable or {}), "thread_id": session_id}
        self._in_foreground = in_foreground
        if in_foreground:
            self._configurable = with_handle(self._configurable, in_foreground=True)

    @cached_property
    def control(self) -> SessionControl:
        """Sends commands to the session, and reads its queued notes."""
        return SessionControl(self._graph, self.id)

    def abort_with(self, handle: RunHandle) -> None:
        """Make an abort of `handle` stop every run of this driver."""
        self._configurable = with_handle(self._configurable, parent=handle)

    def input_id(self, given: Any, input_id: str | None) -> InputId | None:
        """Return the mark of an input, which is its id with a digest of `given`; None if `input_id` is None.

        Raises `InputError` if the id is invalid, or the graph is of another package, which stores no ids.
        """
        if input_id is None:
            return None
        if builder_of(self._graph) is None:
            raise InputError(f"input_id={input_id!r}: only graphs of create_graph_agent() store input ids.")
        return InputId(check_input_id(input_id), digest_of(given))

    def answer_id(self, answer: Any, input_id: str | None) -> InputId | None:
        """Return the mark of an answer, which is its id with a digest of its content; None if `input_id` is None.

        Raises `InputError` if the id is invalid, or the graph is of another package, which stores no ids.
        """
        # Imported here: only answers need it.
        from graph_agent.session.interrupts import answer_content

        return self.input_id(answer_content(answer), input_id) if input_id is not None else None

    @property
    def inputs(self) -> InputDeduplicator:
        """Finds inputs of the session by the ids that their senders gave them."""
        # Imported here: only inputs with an id, and answers, need it.
        from graph_agent.session.deduplicator import InputDeduplicator

        return InputDeduplicator(
            cast("BaseCheckpointSaver[Any]", self._graph.checkpointer), self._graph.aget_state, self.id
        )

    async def state(self) -> StateSnapshot:
        """Return a snapshot of the session's newest checkpoint, with its open tasks; an empty one for a new session."""
        return await self._graph.aget_state({"configurable": self._configurable})

    async def answer(self, answer: Any, decided_by: str | None, mark: InputId | None) -> Any:
        """Check an answer to the session's open interrupts, and return the `Command` that resumes the graph with it.

        Decisions that hold for all later calls are also remembered by the session's automatic approval.

        Args:
            answer: The answer. None, to resume without one after a crash, returns None.
            decided_by: Name of the reviewer, for the history; None for `user`.
            mark: The id and digest of the answer; None if it has no id. None is also returned for an answer whose id
                the session has received already, if it fits no open interrupt.

        Raises:
            InputError: There is nothing to resume, or the answer does not fit the open interrupts.
            InputConflictError: The id belongs to a different answer.
        """
        # Imported here: only answers need it.
        from graph_agent.session.interrupts import ALREADY_DECIDED, answers_by_id, checked_answers, is_decided

        # After a crash between a superstep's last write and its checkpoint, `next` is empty, but `tasks` is not.
        state = await self.state()
        received = mark is not None and await self.inputs.seen(mark) is not None
        if not state.tasks and not received:
            if answer is not None and is_decided(state.values.get("events", ())):
                raise InputError(ALREADY_DECIDED)
            why = "its last input has ended" if state.values else "it has had no input yet"
            raise InputError(f"Session {self.id!r} has nothing to resume: {why}.")
        if answer is None:
            return None
        try:
            checked = await checked_answers(answer, self._graph, state, decided_by)
            if self._approval is not None:
                asked = open_interrupts(state)
                self._approval.remember(answers_by_id(answer, asked), asked, decided_by)
            return Command(resume=checked)
        except InputError:
            if not received:
                raise
            return None

    async def run(self, given: Any, options: RunOptions, mark: InputId | None = None) -> RunResult:
        """Run an input, then the follow-ups that are queued; return the result of the input, with theirs in
        `follow_ups`.

        `given` is the graph's input, and `mark` the id and digest of the input, None without an id. Raises the errors
        of `parts` for the input. An error of a follow-up is logged, and not raised; follow-ups after it stay queued.
        """
        results: list[RunResult] = []
        try:
            async for part in self.parts(given, options, mark):
                results += [part.result] if part.type == "done" else []
        except Exception as error:
            if not results:
                raise
            # It must not hide the answer of the input before it.
            log_failure(logger, f"A follow-up of the session {self.id!r}", error)
        return replace(results[0], follow_ups=tuple(results[1:]))

    async def run_follow_ups(self, options: RunOptions) -> list[RunResult]:
        """Run the queued follow-ups, and return their results in order; empty if none is queued.

        A follow-up that another run takes first has no result. Raises the errors of `parts` for a follow-up, and
        `InputError` within a run of this session.
        """
        refuse_within(self.id)
        if (note := await self.next_after(None, options.control)) is None:
            return []
        parts = self.parts(follow_up_input(note), options, note=note)
        return [part.result async for part in parts if part.type == "done"]

    async def parts(
        self, given: Any, options: RunOptions, mark: InputId | None = None, note: ControlMessage | None = None
    ) -> AsyncGenerator[Part[Any]]:
        """Run an input, then the follow-ups that are queued at its end; yield the parts of each, with `Done` as its
        last one.

        If `approval` can answer the questions with which a run ends, the run is resumed. A follow-up whose parts are
        not consumed stays queued. After an abort, no follow-up is run. The stored parts of an input that has its result
        are yielded, too.

        Args:
            given: The graph's input, or an async function that returns it when the first part is requested.
            options: Options of all these runs. Without `readership`, the only parts are `Done`.
            mark: The id and digest of the input; None for an input without an id.
            note: The follow-up that the input is; None for any other input. If another run takes the follow-up first,
                there are no parts.

        Raises:
            InputError: The answer names an interrupt that is not open, or the caller is within a run of this session.
            InputConflictError: The id belongs to a different input.
            InputSupersededError: The id belongs to an input that a later one replaced before its end.
            SessionBusyError: Another input of the session is running.
            RunFailedError: The input failed, and `on_failure="raise"` is set.
            ConfigError: The context is invalid; or a run in the foreground waits for a person, so that nothing could
                resume it.
        """
        # Imported here: a program that only starts needs neither.
        from graph_agent.session.results import Done, Token
        from graph_agent.session.stream_parts import stored_parts

        given = await cast("Callable[[], Awaitable[Any]]", given)() if callable(given) else given
        refuse_within(self.id)
        builder = builder_of(self._graph)
        own_context = builder is None or builder.user_context is None
        options = replace(options, context=checked_context(options.context, own=own_context))
        while True:
            run, has_streamed = self.input_run(mark=mark, note=note), False
            try:
                async with aclosing(self.input_parts(run, given, options)) as parts:
                    async for part in parts:
                        has_streamed = has_streamed or isinstance(part, Token)
                        yield cast("RunPart", part)
            except SessionBusyError:
                if note is None:
                    raise
                return  # the run that has the session takes the follow-up, which this one has not begun
            result = await self.result(run, options.context)
            if options.readership is not None:
                for stored in stored_parts(run.state, self.id) if run.replayed and run.state else ():
                    yield cast("RunPart", stored)
                if mark is not None and not (run.replayed or has_streamed) and result.answer:
                    yield Token(result.answer)  # streamed by the run that is resumed
            mark, asked = None, [] if run.aborted else result.interrupts
            if asked and (answers := await self._automatic_answers(asked, run, options)):
                given, note = await self.answer(answers, None, None), None
                continue
            if asked and self._in_foreground:
                raise ConfigError(
                    f"A tool asks a person by interrupt({brief_repr(asked[0].value)}), and without a session the run "
                    'could not be resumed. Give the agent a checkpointer, and run it in agent.session("s1").'
                )
            yield Done(result)
            if run.aborted or not self._stores or (note := await self.next_after(run, options.control)) is None:
                return
            given = follow_up_input(note)

    async def _automatic_answers(
        self, asked: Sequence[Interrupt], run: InputRun, options: RunOptions
    ) -> dict[str, Any] | None:
        """Return answers to the open interrupts of a run, interrupt id → answer; None if a reviewer is needed.

        They come from decisions that hold for later calls, or from the callback in `options`, whose exceptions are
        raised. Decisions that were revoked in the meantime, also by another process, are forgotten first.
        """
        if (approval := self._approval) is None:
            return None
        # Another process may have revoked an approval since.
        if approval.has_standing and self._stores and run.state is not None:
            approval.drop_revoked([*run.state.values.get("events", ()), *await self.control.noted_events()])
        return await approval.answers(asked, options.on_approval)

    def input_run(
        self, handle: RunHandle | None = None, *, mark: InputId | None = None, note: ControlMessage | None = None
    ) -> InputRun:
        """Return the run of an input, to be started by `input_parts`.

        Args:
            handle: The handle of the run, whose `after` is set here. None for a new handle; its run is also aborted
                when a surrounding run is aborted.
            mark: For a new handle: the id and digest of the input; None for an input without an id.
            note: For a new handle: the follow-up that the input is; None for any other input.
        """
        if handle is None:
            surrounding = handle_of(self._configurable).parent or handle_of(ensure_config()["configurable"]).run
            outer = surrounding.stop if isinstance(surrounding, Run) else surrounding
            before = partial(self.control.check_next, note) if note is not None else None
            handle = RunHandle(outer, surrounding=surrounding, before=before, mark=mark)
        run = InputRun(handle)
        if self._stores:  # otherwise nothing takes it away, and the two refer to each other
            handle.after = partial(self._read_end, run)
        return run

    async def input_parts(self, run: InputRun, given: Any, options: RunOptions) -> AsyncGenerator[ServedPart]:
        """Run one input to its end, and yield its parts, without `Done` and without follow-ups.

        Also sets the fields of `run`; `replayed` is True if the input was not run.

        If another program runs an input with the same id, its end is waited for. An input that has its result is not
        run, and has no parts.

        Args:
            run: The run, from `input_run`.
            given: The graph's input.
            options: Which parts are yielded, and the options of the run.

        Raises:
            InputError: The answer names an interrupt that is not open.
            InputConflictError: The id belongs to a different input.
            InputSupersededError: The id belongs to an input that a later one replaced before its end.
            SessionBusyError: Another input of the session is running.
            RunFailedError: The input failed, and `on_failure="raise"` is set.
        """
        mark, output = run.handle.mark, options.output
        stores, values = self._stores, dict[str, Any]()
        # This generator closes the stream itself, so that the graph need not notice that a reader has left.
        fields: dict[str, Any] = {"readership": options.readership or ConsumerTracker()}
        if options.readership is not None or (output is not None and output.delegates):
            fields["is_watched"] = True
        configurable = with_handle(self._configurable, parent=run.handle, hides_nodes=not stores, **fields)
        configurable[STRICT_RESUME] = True
        if run.handle.continues_at is not None:
            configurable["checkpoint_id"] = run.handle.continues_at
        config: RunnableConfig = {"configurable": configurable}
        modes, replies = self._sources(run, options)
        if replies is not None and options.reasoning:
            from graph_agent.models.stream_watch import ReasoningReader

            config["callbacks"] = [ReasoningReader(replies.add_reasoning)]
        while True:
            try:
                if modes:
                    # Imported here: a run that only has a result needs none.
                    from graph_agent.session.stream_parts import StreamParts, parts_of_run

                    run.parts = (
                        await parts_of_run(self._graph, self.id, given, mark, replies)
                        if output is None and stores
                        else StreamParts(self.id, replies=replies, in_order=output is None)
                    )
                with run.handle.attached():
                    stream = self._graph.astream(
                        given,
                        config,
                        context=options.context,
                        stream_mode=[*modes] if stores else [*{*modes, "values"}],
                        control=options.control,
                    )
                    async with aclosing(cast("AsyncGenerator[tuple[str, Any]]", stream)) as chunks:
                        async for chunk in chunks:
                            if not stores and chunk[0] == "values":
                                values = cast("dict[str, Any]", chunk[1])
                            if run.parts is not None and (stores or chunk[0] in modes):
                                for part in run.parts.take(*chunk):
                                    yield part
                if not stores:
                    run.state = _end_of(values, config)
                if run.parts is not None:
                    for part in run.parts.rest():
                        yield part
                return
            except InputStoredError as stored:
                run.state, run.replayed = stored.state, True
                return
            except UnknownInterruptError as error:
                from graph_agent.session.interrupts import not_open

                raise InputError(not_open(error.interrupt_ids, error.pending_ids)) from error
            except SessionBusyError:
                if mark is None or not await self._wait_for(mark):
                    raise

    def _sources(self, run: InputRun, options: RunOptions) -> tuple[Sequence[StreamMode], ReplyBuffer | None]:
        """Return LangGraph's stream modes that make the parts of a run, and the buffer for the text of its replies.

        Empty and None if no parts are wanted. The buffer is also None for graphs of other packages, whose text
        LangGraph streams, and if neither text nor reasoning is wanted. Otherwise the handle of `run` is set to forward
        text to the buffer and to report early events.
        """
        output = options.output
        if output is None and options.readership is None:
            return (), None
        if output is None and builder_of(self._graph) is None:
            return ("messages", "custom", "updates"), None
        # Imported here: a run that only has a result needs neither.
        from graph_agent.models.stream_watch import StreamForwarder, WholeReplyWatch
        from graph_agent.session.reply_buffer import ReplyBuffer

        text, every_s = ("tokens", None) if output is None else (output.text, output.every_s)
        replies = ReplyBuffer(every_s) if text == "tokens" or options.reasoning else None
        if text == "replies":
            run.handle.forwarder = WholeReplyWatch
        elif text == "tokens" and replies is not None:
            run.handle.forwarder = partial(StreamForwarder, replies.add_text)
        run.handle.reports_early_events = True
        has_values = output is not None and output.values
        return ("custom", "updates", "values") if has_values else ("custom", "updates"), replies

    async def _wait_for(self, mark: InputId) -> bool:
        """Wait until the run of an input has ended, in whichever process it is; return True if it has ended or is not
        found.

        False if the session runs another input, or if another process runs it and no checkpoint of this input appears
        within `_BEGINNING_S`. Raises `InputConflictError` if the session runs a different input with the same id.
        """
        begun, saver = time.monotonic(), cast("BaseCheckpointSaver[Any]", self._graph.checkpointer)
        while True:
            if (run := await find_run(saver, self.id)) is not None:
                if not mark.names(run.identity.mark, self.id):
                    return False
                await asyncio.wait([asyncio.wrap_future(run.ended)])
                return True
            if await is_idle(saver, self.id):
                return True
            newest = await load(saver, {"configurable": {"thread_id": self.id, "checkpoint_ns": ""}})
            is_same = newest is not None and mark.names(input_id_in(newest.metadata), self.id)
            if not is_same and time.monotonic() - begun > _BEGINNING_S:
                return False
            await asyncio.sleep(POLL_S)

    async def next_after(self, run: InputRun | None, control: RunControl | None = None) -> ControlMessage | None:
        """Return the follow-up to run after an input; None if there is none.

        None also if the inbox cannot be read within some seconds, or if the Store did not answer during the run. Both
        are logged. A follow-up stays queued then. Any other error of the inbox is raised.

        Args:
            run: The run of the input, if this program ran it; None if another one did.
            control: A control of the runs. If it was drained, None is returned.
        """
        if control is not None and control.drain_requested:
            return None
        ended = run.ended if run is not None else None
        if ended is not None and ended.inbox is not None and ended.inbox.is_silent:
            logger.warning("Follow-ups of the session %r stay queued: its Store does not answer.", self.id)
            return None
        try:
            # The deadline of the input before it does not cover this.
            async with asyncio.timeout(
                _LATE_FOLLOW_UP_S if ended is not None and ended.stop.left_s == 0 else _FOLLOW_UP_S
            ):
                return await self.control.next_follow_up()
        except TimeoutError as error:
            log_failure(logger, f"Looking for follow-ups of the session {self.id!r}", error)
            return None

    async def _read_end(self, run: InputRun, ended: Run) -> None:
        """Read the state at the end of a run, and set the fields of `run`.

        If the session's lock was lost, another run may have continued the session; then it is the state of the last
        checkpoint of the input's own run. Raises `SessionLostError` if the input had not ended there.
        """
        run.ended, run.aborted = ended, ended.stop.aborted
        with with_own_lists(ended.stored_lists):
            state = await self.state()
        newest = state.config["configurable"].get("checkpoint_id")
        if (end := ended.fence.end_before(self.id, newest)) is not None:
            state = await self._graph.aget_state({"configurable": {**self._configurable, "checkpoint_id": end}})
            if state.tasks:
                raise ended.fence.lost(self.id, f"its newest checkpoint is {newest}, and this run has not ended")
        run.state = state

    async def result(self, run: InputRun | None = None, context: Any = None) -> RunResult:
        """Return the result of a run that has ended; for None, of the session's newest input.

        A failed result has the exception of the run, if this program ran it, as `cause`. If the input was not run again
        because its failure is stored, and `on_failure="raise"` is set, raises `RunFailedError`.

        Args:
            context: The context of the run.
        """
        run = run or InputRun(RunHandle())
        state = run.state or await self.state()
        result = run_result(state, custom_state_of(self._graph).outputs)
        has_failed, builder = result.status == SessionStatus.FAILED, builder_of(self._graph)
        if run.replayed and has_failed and builder is not None and builder.config is not None:
            changed = state.values["loop"].get("config_overrides")
            if effective_config(builder.config, context, changed=changed).on_failure == "raise":
                result.raise_for_status()
        result = typed_result(result, self._graph, context)
        cause = run.ended.cause if run.ended is not None else None
        return replace(result, cause=Cause(cause)) if has_failed and cause is not None else result


def _end_of(values: dict[str, Any], config: RunnableConfig) -> StateSnapshot:
    """Return the state at the end of a run that stores nothing.

    Args:
        values: The last chunk of the mode `values`, from which the interrupts are removed.
        config: The config of the run.
    """
    interrupts = tuple(values.pop(INTERRUPT, ()))
    tasks = (PregelTask("", "", (), interrupts=interrupts),) if interrupts else ()
    return StateSnapshot(values, (), config, None, None, None, tasks, interrupts)


def follow_up_input(note: ControlMessage) -> dict[str, Any]:
    """Return the graph's input for a follow-up."""
    return {"messages": [note_message(note)]}
