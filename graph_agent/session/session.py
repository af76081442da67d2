"""Defines `Session`, the conversation API for one session of an agent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, cast, overload

from langchain_core.messages import BaseMessage, HumanMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.runtime import RunControl
from langgraph.types import Command, Interrupt

from graph_agent._internal.closing_stream import ClosingStream, ConsumerTracker
from graph_agent._internal.failure_log import log_failure
from graph_agent._internal.sync_bridge import blocking, refuse_running_loop
from graph_agent._internal.text import check_session_id
from graph_agent.errors import ConfigError, InputError, SessionBusyError
from graph_agent.runs.control_messages import message_of
from graph_agent.runs.inbox import ControlMessage
from graph_agent.runs.input_ids import InputId, InputStoredError
from graph_agent.runs.registry import refuse_within
from graph_agent.runs.run import READERSHIP, WATCHED, Run
from graph_agent.session.built_agent import NO_SAVER, builder_of, custom_state_of
from graph_agent.session.control import SessionCommands, SessionControl
from graph_agent.session.history import SessionMemory
from graph_agent.session.repeated_input import InputRun, answer_content, input_id_of, stored_result, wait_for_input
from graph_agent.session.run_result import Cause, RunResult, open_interrupts, run_result, typed_result
from graph_agent.settings.config import checked_context
from graph_agent.state.events import Event
from graph_agent.types import ContextT, ResponseT, SessionStatus, with_parameters_of

if TYPE_CHECKING:
    from graph_agent.compiled import CompiledAgentGraph
    from graph_agent.session.auto_approval import OnApproval
    from graph_agent.session.results import Part


logger = logging.getLogger(__name__)
_FOLLOW_UP_S = 10.0
"""Maximum seconds to look for a follow-up after an input."""
_LATE_FOLLOW_UP_S = 2.0
"""The same after an input whose deadline has passed."""

Given = str | Sequence[BaseMessage]


class Session(SessionCommands, Generic[ResponseT, ContextT]):
    """One session of an agent: a LangGraph thread, with its runs, its status and its history.

    It has one run at a time. Any number of `Session` objects, in any thread or process, may refer to the same session.

    Args:
        graph: A compiled agent with a checkpointer.
        session_id: The thread's id; a new id begins a new session.
        configurable: Additional keys of the runs' `configurable`.
        on_approval: Decides on each call of a run that waits for approval: True, False, or a decision of
            `graph_agent.approvals`; None to return to the caller, who resumes. With it, or with that of a run, an agent
            without a checkpointer has its session in memory, as long as this object exists.

    Raises:
        ConfigError: When the graph is no agent with a checkpointer. An agent without one raises it at the first run
            without `on_approval`.
        InputError: When the id is no Unicode text.
    """

    @overload
    def __init__(
        self,
        graph: CompiledAgentGraph[ResponseT, ContextT],
        session_id: str,
        *,
        configurable: Mapping[str, Any] | None = None,
        on_approval: OnApproval | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: Session[Any, Any],
        graph: CompiledStateGraph[Any, Any, Any, Any],
        session_id: str,
        *,
        configurable: Mapping[str, Any] | None = None,
        on_approval: OnApproval | None = None,
    ) -> None: ...

    def __init__(
        self,
        graph: CompiledStateGraph[Any, Any, Any, Any],
        session_id: str,
        *,
        configurable: Mapping[str, Any] | None = None,
        on_approval: OnApproval | None = None,
    ) -> None:
        if not isinstance(graph, Pregel):
            raise ConfigError(f"A session needs a compiled agent, not {graph!r}; make one with create_graph_agent().")
        if not isinstance(session_id, str) or not session_id:
            raise ConfigError(f"session_id={session_id!r}: a session needs an id; pass any text that is not empty.")
        check_session_id(session_id)
        self._is_stored = graph.checkpointer is not None or on_approval is not None
        if graph.checkpointer is None and (builder := builder_of(graph)) is not None:
            from langgraph.checkpoint.memory import InMemorySaver

            saver = InMemorySaver()
            graph = builder.compile(checkpointer=saver, store=graph.store, cache=graph.cache, name=graph.name)
        # Imported here: it loads the parsers of decisions.
        from graph_agent.session.auto_approval import AutoApproval

        self._approval = AutoApproval(on_approval)
        self._memory = SessionMemory(graph)
        super().__init__(graph, session_id)
        self._control = SessionControl(graph, session_id)
        own = builder_of(graph)
        self._own_context = own is None or own.user_context is None
        self._configurable: dict[str, Any] = {**(configurable or {}), "thread_id": session_id}
        self._config: RunnableConfig = {"configurable": self._configurable}

    async def run(
        self,
        given: Given,
        *,
        context: ContextT | Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        input_id: str | None = None,
        on_approval: OnApproval | None = None,
    ) -> RunResult[ResponseT]:
        """Run one input to its end, then each follow-up that is queued by then.

        With an `input_id`, the input is run once: the same id again, in any process and after any crash, resumes the
        input if it is unfinished, waits for it if it is running, and returns its stored result if it has one.

        Args:
            given: The user's input, as text or as messages.
            context: Overrides and credentials for this run and its follow-ups.
            state: Values of own state fields (see `state_schema`), which this input sets; None to set none.
            input_id: The input's id, unique in the session: 1 to 255 printable characters; None if there is none.
            on_approval: Decides on the calls of this run and its follow-ups, in place of the session's own
                `on_approval`; None for that.

        Returns:
            The result of this input; `follow_ups` has the results of the follow-ups. A follow-up that raises is logged.

        Raises:
            InputError: When it is empty, or `state` does not fit the agent's own fields.
            InputConflictError: When `input_id` belongs to an input with other messages or other `state`.
            InputSupersededError: When `input_id` belongs to an input that a later one replaced before its end.
            SessionBusyError: When the session is running.
            RunFailedError: When the input failed, and `on_failure="raise"` is set.
        """
        self._check_stored(on_approval)
        graph_input = self._with_state(given, state)
        return await self._to_end(graph_input, context, input_id_of(graph_input, input_id, self._graph), on_approval)

    async def resume(
        self,
        answer: Any = None,
        *,
        context: ContextT | Mapping[str, Any] | None = None,
        decided_by: str | None = None,
        input_id: str | None = None,
        on_approval: OnApproval | None = None,
    ) -> RunResult[ResponseT]:
        """Resume the session: with an answer to its open interrupt, or after a crash.

        Args:
            answer: The person's answer; a mapping of interrupt id → answer if there are several. None after a crash.
                Decisions on calls that wait for approval are made with `graph_agent.approvals`.
            context: Same as for `run`.
            decided_by: Name of the person who decided on calls, for the history; None for `user`.
            input_id: The answer's own id, as for `run`; None if there is none.
            on_approval: Same as for `run`.

        Raises:
            InputError: When there is nothing to resume, the answer matches no open interrupt, or a decision does not
                fit its call. The session then waits as before.
            InputConflictError, InputSupersededError: Same as for `run`.
            SessionBusyError: When the session is running.
        """
        self._check_stored(on_approval)
        mark = input_id_of(answer_content(answer), input_id, self._graph)
        return await self._to_end(await self._answer(answer, decided_by, mark), context, mark, on_approval)

    @with_parameters_of(run)
    def run_sync(self, given: Given, **options: Any) -> RunResult[ResponseT]:
        """Behaves like `run` with the same options, but blocks until the end, for a script.

        Raises:
            SyncInLoopError: In the thread of a running event loop, as in a notebook: use `await session.run(...)`.
        """
        refuse_running_loop("Session.run_sync", "session.run")
        return blocking(self.run)(given, **options)

    @with_parameters_of(resume)
    def resume_sync(self, answer: Any = None, **options: Any) -> RunResult[ResponseT]:
        """Behaves like `resume`, but blocks until the end.

        Raises:
            SyncInLoopError: Same as for `run_sync`.
        """
        refuse_running_loop("Session.resume_sync", "session.resume")
        return blocking(self.resume)(answer, **options)

    def stream(
        self,
        given: Given,
        *,
        context: ContextT | Mapping[str, Any] | None = None,
        control: RunControl | None = None,
        state: Mapping[str, Any] | None = None,
        input_id: str | None = None,
        on_approval: OnApproval | None = None,
    ) -> AsyncGenerator[Part[ResponseT]]:
        """Run one input to its end and yield the parts of the run as they occur; `Done` is last.

        Objects that tools write with `get_stream_writer` are `Custom` parts. The run of a delegate in this process, its
        tokens included, is in `DelegatePart`s; any other `Token` belongs to the agent itself.

        After `Done` come the parts of each follow-up that is queued by then, each with a `Done` of its own. A follow-up
        whose parts are not consumed stays queued.

        The run continues while its parts are consumed. Leaving the loop before the last part stops the run: at once if
        nothing else refers to the generator, else when the generator is closed or the session gets its next input.

        Args:
            given: The user's input, as text or as messages.
            context: Overrides and credentials for this run and its follow-ups.
            control: Lets the run be stopped at its next boundary; it then ends with LangGraph's `GraphDrained`.
            state: Same as for `run`.
            input_id: Same as for `run`. The parts of a stored result are its events, and its answer as one `Token`. The
                parts of a resumed input begin where it is resumed.
            on_approval: Same as for `run`. The stream goes on after its decisions, without a `Done` between.

        Raises:
            InputError: Same as for `run`.
            SessionBusyError: When the session is running; raised by the first part.
            RunFailedError: In place of `Done`, when the input failed, and `on_failure="raise"` is set.
        """
        self._check_stored(on_approval)
        readership = ConsumerTracker()
        graph_input = self._with_state(given, state)
        mark = input_id_of(graph_input, input_id, self._graph)
        return ClosingStream(self._stream(graph_input, context, control, readership, mark, on_approval), readership)

    @with_parameters_of(stream)
    def stream_sync(self, given: Given, **options: Any) -> Iterator[Part[ResponseT]]:
        """Behaves like `stream`, but blocks, for a script. Leaving the loop before the last part stops the run.

        Raises:
            SyncInLoopError: Same as for `run_sync`.
        """
        refuse_running_loop("Session.stream_sync", "session.stream")
        return self._parts_sync(self.stream(given, **options))

    def _parts_sync(self, parts: AsyncGenerator[Part[ResponseT]]) -> Iterator[Part[ResponseT]]:
        async def take() -> Part[ResponseT] | None:
            return await anext(parts, None)

        async def close() -> None:
            await parts.aclose()

        try:
            while (part := blocking(take)()) is not None:
                yield part
        finally:
            blocking(close)()

    def stream_resume(
        self,
        answer: Any = None,
        *,
        context: ContextT | Mapping[str, Any] | None = None,
        decided_by: str | None = None,
        control: RunControl | None = None,
        input_id: str | None = None,
        on_approval: OnApproval | None = None,
    ) -> AsyncGenerator[Part[ResponseT]]:
        """Behaves like `resume`, but yields the parts of the run."""
        self._check_stored(on_approval)
        mark, readership = input_id_of(answer_content(answer), input_id, self._graph), ConsumerTracker()
        parts = self._stream_answer(answer, context, decided_by, control, readership, mark, on_approval)
        return ClosingStream(parts, readership)

    async def _stream_answer(
        self,
        answer: Any,
        context: Any,
        decided_by: str | None,
        control: RunControl | None,
        readership: ConsumerTracker,
        mark: InputId | None,
        on_approval: OnApproval | None,
    ) -> AsyncGenerator[Part[ResponseT]]:
        given = await self._answer(answer, decided_by, mark)
        async with aclosing(self._stream(given, context, control, readership, mark, on_approval)) as parts:
            async for part in parts:
                yield part

    async def run_follow_ups(
        self, *, context: ContextT | Mapping[str, Any] | None = None, control: RunControl | None = None
    ) -> list[RunResult[ResponseT]]:
        """Run the queued follow-ups one after the other, as `run` does after its own input.

        Args:
            context: Overrides and credentials for these runs.
            control: Lets the runs be stopped at their next boundary.

        Returns:
            Their results, in order; empty if none is queued, the session is running, or its newest input was not
            answered.
        """
        self._check_stored()
        refuse_within(self.id)
        results: list[RunResult[ResponseT]] = []
        await self._run_queued(results, context, control)
        return results

    async def _stream(
        self,
        given: Any,
        context: Any,
        control: RunControl | None,
        readership: ConsumerTracker,
        mark: InputId | None = None,
        on_approval: OnApproval | None = None,
    ) -> AsyncGenerator[Part[ResponseT]]:
        # Imported here: only streams need them.
        from graph_agent.session.results import Done, Token
        from graph_agent.session.stream_parts import MODES, parts_of_run, stored_parts

        refuse_within(self.id)
        note: ControlMessage | None = None
        while True:
            run, has_streamed = self._input_run(note, context, mark), False
            try:
                stream_parts = await parts_of_run(self._graph, self.id, given, mark)
                with run.opened({**self._configurable, READERSHIP: readership, WATCHED: True}) as config:
                    stream = self._graph.astream(
                        given,
                        config,
                        context=checked_context(context, own=self._own_context),
                        stream_mode=MODES,
                        control=control,
                    )
                    async with aclosing(cast("AsyncGenerator[tuple[str, Any]]", stream)) as chunks:
                        async for mode, payload in chunks:
                            for part in stream_parts.take(mode, payload):
                                has_streamed = has_streamed or isinstance(part, Token)
                                yield part
                    for part in stream_parts.rest():
                        yield part
            except InputStoredError as stored:
                run.set_stored(stored_result(stored.state, self._graph, context))
                for part in stored_parts(stored.state, self.id):
                    yield part
                has_streamed = True
            except SessionBusyError:
                if note is None and await self._waits_for(mark):
                    continue
                if note is None:
                    raise
                return  # the run that has the session takes the follow-up
            result = await run.result()
            if mark is not None and not has_streamed and result.answer:
                yield Token(result.answer)  # streamed by the run that is resumed
            mark = None
            if (resumed := await self._decided(run, on_approval)) is not None:
                given, note = resumed, None
                continue
            yield Done(result)
            if run.aborted or (note := await self._next_follow_up(control, run)) is None:
                return
            given = _input([message_of(note)])

    def _check_stored(self, on_approval: OnApproval | None = None) -> None:
        """Raise `ConfigError` for an agent without a checkpointer, unless approvals are decided within a run."""
        self._is_stored = self._is_stored or on_approval is not None
        if not self._is_stored:
            raise ConfigError(NO_SAVER)

    def _with_state(self, given: Given, state: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the graph's input for an input of the user and values of own state fields."""
        if state is not None and not isinstance(state, Mapping):
            raise InputError(f"state={state!r}: give a mapping of own state fields to values, or None.")
        if not state:
            return _input(given)
        custom_state_of(self._graph).check_input(state)
        return {**_input(given), **state}

    async def events(self, *, last: int | None = None, after: int = -1) -> list[Event]:
        """Return the session's history, oldest event first.

        Args:
            last: Maximum number of events, the newest ones; None for all.
            after: Only events whose `seq` is higher.
        """
        self._check_stored()
        return await self._memory.get_session_events(self.id, last=last, after=after)

    async def status(self) -> SessionStatus:
        """Return the session's status; `CREATED` before its first input."""
        self._check_stored()
        return await self._memory.get_session_status(self.id)

    async def interrupts(self) -> list[Interrupt]:
        """Return the open interrupts, which `resume` answers; empty if the session does not wait."""
        self._check_stored()
        return open_interrupts(await self._graph.aget_state(self._config))

    async def _to_end(
        self, given: Any, context: Any, mark: InputId | None, on_approval: OnApproval | None
    ) -> RunResult:
        refuse_within(self.id)
        run = await self._run_one(given, context, mark=mark, on_approval=on_approval)
        result, follow_ups = await run.result(), list[RunResult]()
        try:
            if not run.aborted:
                await self._run_queued(follow_ups, context, after=run, on_approval=on_approval)
        except Exception as error:  # noqa: BLE001 - an error of a follow-up must not hide the answer of the input before it
            log_failure(logger, f"A follow-up of the session {self.id!r}", error)
        return replace(result, follow_ups=tuple(follow_ups))

    async def _run_queued(
        self,
        results: list[RunResult],
        context: Any,
        control: RunControl | None = None,
        after: InputRun | None = None,
        on_approval: OnApproval | None = None,
    ) -> None:
        """Run the queued follow-ups, `after` an input; append each result to `results` when it ends."""
        run = after
        while (note := await self._next_follow_up(control, run)) is not None:
            try:
                given = _input([message_of(note)])
                run = await self._run_one(given, context, control, note, on_approval=on_approval)
            except SessionBusyError:
                return  # the run that has the session takes the follow-up
            results.append(await run.result())
            if run.aborted:
                return

    async def _next_follow_up(self, control: RunControl | None, after: InputRun | None) -> ControlMessage | None:
        if control is not None and control.drain_requested:
            return None
        if after is not None and after.is_store_silent:
            logger.warning("Follow-ups of the session %r stay queued: its Store does not answer.", self.id)
            return None
        try:
            async with asyncio.timeout(_LATE_FOLLOW_UP_S if after is not None and after.is_late else _FOLLOW_UP_S):
                return await self._control.next_follow_up()
        except TimeoutError as error:
            # The deadline of the input before it does not cover this.
            log_failure(logger, f"Looking for follow-ups of the session {self.id!r}", error)
            return None

    async def _run_one(
        self,
        given: Any,
        context: Any,
        control: RunControl | None = None,
        note: ControlMessage | None = None,
        mark: InputId | None = None,
        on_approval: OnApproval | None = None,
    ) -> InputRun:
        """Run an input, and resume it as long as its approvals need no person."""
        while True:
            run = self._input_run(note, context, mark)
            try:
                with run.opened(self._configurable) as config:
                    await self._graph.ainvoke(
                        given, config, context=checked_context(context, own=self._own_context), control=control
                    )
            except InputStoredError as stored:
                run.set_stored(stored_result(stored.state, self._graph, context))
            except SessionBusyError:
                if not await self._waits_for(mark):
                    raise
                continue
            if (resumed := await self._decided(run, on_approval)) is None:
                return run
            given, note, mark = resumed, None, None

    async def _decided(self, run: InputRun, on_approval: OnApproval | None) -> Any:
        """Return the graph's input that resumes an ended run; None if it does not wait, or waits for a person."""
        asked = [] if run.aborted else (await run.result()).interrupts
        answers = await self._approval.answers(asked, on_approval)
        return await self._answer(answers, None, None) if answers else None

    async def _waits_for(self, mark: InputId | None) -> bool:
        """Wait for the end of the run of an input; False for an input without an id, and if another input runs."""
        return mark is not None and await wait_for_input(self._saver, self.id, mark)

    def _input_run(self, note: ControlMessage | None, context: Any, mark: InputId | None = None) -> InputRun:
        async def read(run: Run | None) -> RunResult:
            result = typed_result(await self._result(run), self._graph, context)
            has_failed = result.status == SessionStatus.FAILED and run is not None and run.cause is not None
            return replace(result, cause=Cause(run.cause)) if has_failed and run is not None else result

        return InputRun(read, partial(self._control.check_next, note) if note is not None else None, mark)

    async def _answer(self, answer: Any, decided_by: str | None, mark: InputId | None) -> Any:
        """Return the graph's input that resumes the session; None for an answer that it has received already."""
        # Imported here: only answers need them.
        from graph_agent.inputs.deduplicator import InputDeduplicator
        from graph_agent.session.interrupts import answers_by_id, checked_answers

        # After a crash between a superstep's last write and its checkpoint, `next` is empty, but `tasks` is not.
        state = await self._graph.aget_state(self._config)
        admission = InputDeduplicator(self._saver, self._graph.aget_state, self.id)
        received = mark is not None and await admission.seen(mark) is not None
        if not state.tasks and not received:
            raise InputError(f"Session {self.id!r} has nothing to resume: its last input has ended.")
        if answer is None:
            return None
        try:
            checked = checked_answers(answer, self._graph, state, decided_by)
            asked = open_interrupts(state)
            self._approval.remember(answers_by_id(answer, asked), asked, decided_by)
            return Command(resume=checked)
        except InputError:
            if not received:
                raise
            return None

    async def _result(self, run: Run | None = None) -> RunResult:
        """Return the newest result, or that of a run whose last checkpoint is no longer the session's newest."""
        state = await self._graph.aget_state(self._config)
        newest = state.config["configurable"].get("checkpoint_id")
        if run is not None and (end := run.fence.end_before(self.id, newest)) is not None:
            state = await self._graph.aget_state({"configurable": {**self._configurable, "checkpoint_id": end}})
            if state.tasks:
                raise run.fence.lost(self.id, f"its newest checkpoint is {newest}, and this run has not ended")
        return run_result(state, custom_state_of(self._graph).outputs)


def _input(given: Given) -> dict[str, Any]:
    if isinstance(given, str) and given.strip():
        return {"messages": [HumanMessage(given)]}
    if isinstance(given, Sequence) and not isinstance(given, str) and given:
        try:
            return {"messages": convert_to_messages(given)}
        except (ValueError, NotImplementedError) as error:
            why = str(error).splitlines()[0].rstrip(".")
            raise InputError(f"A run takes messages, such as HumanMessage('hello'); got {given!r}: {why}.") from None
    raise InputError(f"A run takes the user's input, as text that is not empty or as messages; got {given!r}.")
