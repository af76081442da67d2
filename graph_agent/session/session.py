"""`Session`: the conversation API for one session of an agent."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from langchain_core.messages import BaseMessage, HumanMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.runtime import RunControl
from langgraph.types import Command, Interrupt

from graph_agent._internal.closing_stream import ClosingStream, Readership
from graph_agent._internal.failure_log import log_failure
from graph_agent.context import AgentContext, checked_context
from graph_agent.errors import ConfigError, InputError, SessionBusyError
from graph_agent.events.types import Event
from graph_agent.runs.inbox import Note
from graph_agent.runs.input_marks import InputMark, InputStoredError
from graph_agent.runs.notes import message_of
from graph_agent.runs.registry import refuse_within
from graph_agent.runs.run import READERSHIP, WATCHED, Run
from graph_agent.session.built_agent import own_fields_of
from graph_agent.session.control import SessionCommands, SessionControl
from graph_agent.session.history import SessionMemory
from graph_agent.session.input_run import InputRun
from graph_agent.session.repeated_input import answer_content, mark_of, stored_result, wait_for_input
from graph_agent.session.run_result import RunResult, open_interrupts, run_result
from graph_agent.session.typed_result import typed_result
from graph_agent.types import SessionStatus

if TYPE_CHECKING:
    from graph_agent.session.results import Part

logger = logging.getLogger(__name__)

Context = AgentContext | Mapping[str, Any]
Given = str | Sequence[BaseMessage]


class Session(SessionCommands):
    """One session of an agent: a LangGraph thread, with its runs, its status and its history.

    It has one run at a time. Any number of `Session` objects, in any thread or process, may refer to the same session.

    Args:
        graph: A compiled agent with a checkpointer.
        session_id: The thread's id; a new id begins a new session.
        configurable: Additional keys of the runs' `configurable`.

    Raises:
        ConfigError: When the graph has no checkpointer.
    """

    def __init__(
        self,
        graph: CompiledStateGraph[Any, Any, Any, Any],
        session_id: str,
        *,
        configurable: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(graph, Pregel):
            raise ConfigError(f"A session needs a compiled agent, not {graph!r}; make one with create_graph_agent().")
        if not isinstance(session_id, str) or not session_id:
            raise ConfigError(f"session_id={session_id!r}: a session needs an id; pass any text that is not empty.")
        self._memory = SessionMemory(graph)
        super().__init__(graph, session_id)
        self._control = SessionControl(graph, session_id)
        self._configurable: dict[str, Any] = {**(configurable or {}), "thread_id": session_id}
        self._config: RunnableConfig = {"configurable": self._configurable}

    async def run(
        self,
        given: Given,
        *,
        context: Context | None = None,
        state: Mapping[str, Any] | None = None,
        input_id: str | None = None,
    ) -> RunResult:
        """Run one input to its end, then each follow-up that is queued by then.

        With an `input_id`, the input is run once: the same id again, in any process and after any crash, resumes the
        input if it is unfinished, waits for it if it is running, and returns its stored result if it has one.

        Args:
            given: The user's input, as text or as messages.
            context: Overrides and credentials for this run and its follow-ups.
            state: Values of own state fields (see `state_schema`), which this input sets; None to set none.
            input_id: The input's id, unique in the session: 1 to 255 printable characters; None for none.

        Returns:
            The result of this input; `follow_ups` has the results of the follow-ups. A follow-up that raises is logged.

        Raises:
            InputError: When it is empty, or `state` does not fit the agent's own fields.
            InputConflictError: When `input_id` belongs to an input with other messages or other `state`.
            InputSupersededError: When `input_id` belongs to an input that a later one replaced before its end.
            SessionBusyError: When the session is running.
            RunFailedError: When the input failed, and `on_failure="raise"` is set.
        """
        graph_input = self._with_state(given, state)
        return await self._to_end(graph_input, context, mark_of(graph_input, input_id, self._graph))

    async def resume(
        self,
        answer: Any = None,
        *,
        context: Context | None = None,
        decided_by: str | None = None,
        input_id: str | None = None,
    ) -> RunResult:
        """Resume the session: with an answer to its open interrupt, or after a crash.

        Args:
            answer: The person's answer; a mapping of interrupt id → answer if there are several. None after a crash.
                Decisions on calls that wait for approval are made with `graph_agent.approvals`.
            context: As for `run`.
            decided_by: Name of the person who decided on calls, for the history; None for `user`.
            input_id: The answer's own id, as for `run`; None for none.

        Raises:
            InputError: When there is nothing to resume, the answer matches no open interrupt, or a decision does not
                fit its call. The session then waits as before.
            InputConflictError, InputSupersededError: As for `run`.
            SessionBusyError: When the session is running.
        """
        mark = mark_of(answer_content(answer), input_id, self._graph)
        return await self._to_end(await self._answer(answer, decided_by, mark), context, mark)

    def stream(
        self,
        given: Given,
        *,
        context: Context | None = None,
        control: RunControl | None = None,
        state: Mapping[str, Any] | None = None,
        input_id: str | None = None,
    ) -> AsyncGenerator[Part]:
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
            state: As for `run`.
            input_id: As for `run`. The parts of a stored result are its events, and its answer as one `Token`; those of
                a resumed input begin where it is resumed.

        Raises:
            InputError: As for `run`.
            SessionBusyError: When the session is running; raised by the first part.
            RunFailedError: In place of `Done`, when the input failed, and `on_failure="raise"` is set.
        """
        readership = Readership()
        graph_input = self._with_state(given, state)
        mark = mark_of(graph_input, input_id, self._graph)
        return ClosingStream(self._stream(graph_input, context, control, readership, mark), readership)

    def stream_resume(
        self,
        answer: Any = None,
        *,
        context: Context | None = None,
        decided_by: str | None = None,
        control: RunControl | None = None,
        input_id: str | None = None,
    ) -> AsyncGenerator[Part]:
        """As `resume`, but yield the parts of the run as `stream` does."""
        mark, readership = mark_of(answer_content(answer), input_id, self._graph), Readership()
        return ClosingStream(self._stream_answer(answer, context, decided_by, control, readership, mark), readership)

    async def _stream_answer(
        self,
        answer: Any,
        context: Context | None,
        decided_by: str | None,
        control: RunControl | None,
        readership: Readership,
        mark: InputMark | None,
    ) -> AsyncGenerator[Part]:
        given = await self._answer(answer, decided_by, mark)
        async with aclosing(self._stream(given, context, control, readership, mark)) as parts:
            async for part in parts:
                yield part

    async def run_follow_ups(
        self, *, context: Context | None = None, control: RunControl | None = None
    ) -> list[RunResult]:
        """Run the queued follow-ups one after the other, as `run` does after its own input.

        Args:
            context: Overrides and credentials for these runs.
            control: Lets the runs be stopped at their next boundary.

        Returns:
            Their results, in order; empty if none is queued, the session is running, or its newest input was not
            answered.
        """
        refuse_within(self.id)
        results: list[RunResult] = []
        await self._run_queued(results, context, control)
        return results

    async def _stream(
        self,
        given: Any,
        context: Context | None,
        control: RunControl | None,
        readership: Readership,
        mark: InputMark | None = None,
    ) -> AsyncGenerator[Part]:
        # Imported here: only streams need them.
        from graph_agent.session.results import Done, Token
        from graph_agent.session.stream_parts import MODES, parts_of_run, stored_parts

        refuse_within(self.id)
        note: Note | None = None
        while True:
            run, has_streamed = self._input_run(note, context, mark), False
            try:
                stream_parts = await parts_of_run(self._graph, self.id, given, mark)
                with run.opened({**self._configurable, READERSHIP: readership, WATCHED: True}) as config:
                    stream = self._graph.astream(
                        given, config, context=checked_context(context), stream_mode=MODES, control=control
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
            yield Done(result)
            mark = None
            if run.aborted or (note := await self._next_follow_up(control)) is None:
                return
            given = _input([message_of(note)])

    def _with_state(self, given: Given, state: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the graph's input for an input of the user and values of own state fields."""
        if state is not None and not isinstance(state, Mapping):
            raise InputError(f"state={state!r}: give a mapping of own state fields to values, or None.")
        if not state:
            return _input(given)
        own_fields_of(self._graph).check_input(state)
        return {**_input(given), **state}

    async def events(self, *, last: int | None = None, after: int = -1) -> list[Event]:
        """Return the session's history, oldest event first.

        Args:
            last: Maximum number of events, the newest ones; None for all.
            after: Only events whose `seq` is higher.
        """
        return await self._memory.get_session_events(self.id, last=last, after=after)

    async def status(self) -> SessionStatus:
        """Return the session's status; `CREATED` before its first input."""
        return await self._memory.get_session_status(self.id)

    async def interrupts(self) -> list[Interrupt]:
        """Return the open interrupts, which `resume` answers; empty if the session does not wait."""
        return open_interrupts(await self._graph.aget_state(self._config))

    async def _to_end(self, given: Any, context: Context | None, mark: InputMark | None = None) -> RunResult:
        refuse_within(self.id)
        run = await self._run_one(given, context, mark=mark)
        result, follow_ups = await run.result(), list[RunResult]()
        try:
            if not run.aborted:
                await self._run_queued(follow_ups, context)
        except Exception as error:  # noqa: BLE001 - an error of a follow-up must not hide the answer of the input before it
            log_failure(logger, f"A follow-up of the session {self.id!r}", error)
        return replace(result, follow_ups=tuple(follow_ups))

    async def _run_queued(
        self, results: list[RunResult], context: Context | None, control: RunControl | None = None
    ) -> None:
        """Run the queued follow-ups; append each result to `results` when it ends."""
        while (note := await self._next_follow_up(control)) is not None:
            try:
                run = await self._run_one(_input([message_of(note)]), context, control, note)
            except SessionBusyError:
                return  # the run that has the session takes the follow-up
            results.append(await run.result())
            if run.aborted:
                return

    async def _next_follow_up(self, control: RunControl | None) -> Note | None:
        stopping = control is not None and control.drain_requested
        return None if stopping else await self._control.next_follow_up()

    async def _run_one(
        self,
        given: Any,
        context: Context | None,
        control: RunControl | None = None,
        note: Note | None = None,
        mark: InputMark | None = None,
    ) -> InputRun:
        run = self._input_run(note, context, mark)
        while True:
            try:
                with run.opened(self._configurable) as config:
                    await self._graph.ainvoke(given, config, context=checked_context(context), control=control)
            except InputStoredError as stored:
                run.set_stored(stored_result(stored.state, self._graph, context))
            except SessionBusyError:
                if not await self._waits_for(mark):
                    raise
                continue
            return run

    async def _waits_for(self, mark: InputMark | None) -> bool:
        """Wait for the end of the run of an input; False for an input without an id, and if another input runs."""
        return mark is not None and await wait_for_input(self._saver, self.id, mark)

    def _input_run(self, note: Note | None, context: Context | None, mark: InputMark | None = None) -> InputRun:
        async def read(run: Run | None) -> RunResult:
            return typed_result(await self._result(run), self._graph, context)

        return InputRun(read, partial(self._control.check_next, note) if note is not None else None, mark)

    async def _answer(self, answer: Any, decided_by: str | None, mark: InputMark | None) -> Any:
        """Return the graph's input that resumes the session; None for an answer that it has received already."""
        # Imported here: only answers need them.
        from graph_agent.execution.inputs import Admission
        from graph_agent.session.interrupts import checked_answers

        # After a crash between a step's last write and its checkpoint, `next` is empty, but `tasks` is not.
        state = await self._graph.aget_state(self._config)
        admission = Admission(self._saver, self._graph.aget_state, self.id)
        received = mark is not None and await admission.seen(mark) is not None
        if not state.tasks and not received:
            raise InputError(f"Session {self.id!r} has nothing to resume: its last input has ended.")
        if answer is None:
            return None
        try:
            return Command(resume=checked_answers(answer, self._graph, state, decided_by))
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
        return run_result(state, own_fields_of(self._graph).outputs)


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
