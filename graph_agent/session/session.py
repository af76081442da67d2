"""Defines `Session`, the conversation API for one session of an agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from langchain_core.messages import BaseMessage, HumanMessage, convert_to_messages
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.runtime import RunControl
from langgraph.types import Interrupt

from graph_agent.base._internal.closing_stream import ClosingStream, ConsumerTracker
from graph_agent.base._internal.saver_loops import serve_any_loop
from graph_agent.base._internal.sync_bridge import DaemonThreads, blocking, blocking_parts, refuse_running_loop
from graph_agent.base._internal.text import check_session_id
from graph_agent.base.errors import ConfigError, InputError
from graph_agent.base.history.events import Event, Rating
from graph_agent.base.input_ids import input_id_in
from graph_agent.base.types import ContextT, ResponseT, SessionStatus, with_parameters_of
from graph_agent.session.built_agent import NO_SAVER, builder_of, check_session_graph, custom_state_of
from graph_agent.session.control import SessionCommands
from graph_agent.session.driver import RunDriver, RunOptions
from graph_agent.session.history import SessionMemory
from graph_agent.session.results import RunResult, open_interrupts

if TYPE_CHECKING:
    from pathlib import Path

    from graph_agent.base.settings.context_fields import ContextFields
    from graph_agent.session.compiled import CompiledAgentGraph
    from graph_agent.session.interrupts import OnApproval
    from graph_agent.session.results import Part
    from graph_agent.session.trace import Span

Given = str | Sequence[BaseMessage]
GraphT = TypeVar("GraphT", bound=CompiledStateGraph[Any, Any, Any, Any])

_DRAWN_WITHIN_S = 5
"""Maximum seconds for reading the history of a session that a notebook draws."""


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
        ConfigError: When the graph is no agent with a checkpointer, or a graph with an agent in one of its nodes. An
            agent without a checkpointer raises it at the first run without `on_approval`.
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
        check_callback(on_approval)
        check_session_graph(graph)
        if isinstance(graph.checkpointer, BaseCheckpointSaver):
            serve_any_loop(graph.checkpointer)
        self._is_stored = graph.checkpointer is not None or on_approval is not None
        # A decision resumes a checkpoint, so that an agent that stores nothing needs a saver for `on_approval`.
        if graph.checkpointer is None and builder_of(graph) is not None:
            graph = kept_in_memory(graph)
        # Imported here: it loads the parsers of decisions.
        from graph_agent.session.interrupts import AutoApproval

        self._memory = SessionMemory(graph)
        super().__init__(graph, session_id)
        self.driver = RunDriver(graph, session_id, configurable=configurable, approval=AutoApproval(on_approval))
        """Runs the session's inputs."""

    async def run(
        self,
        given: Given,
        *,
        context: ContextT | ContextFields | None = None,
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
                `on_approval`; None to use the session's.

        Returns:
            The result of this input; `follow_ups` has the results of the follow-ups. A follow-up that raises is logged.

        Raises:
            InputError: When the input is empty, or `state` does not fit the agent's own fields.
            InputConflictError: When `input_id` belongs to an input with other messages or other `state`.
            InputSupersededError: When `input_id` belongs to an input that a later one replaced before its end.
            SessionBusyError: When the session is running.
            RunFailedError: When the input failed, and `on_failure="raise"` is set.
            ConfigError: When the agent has no checkpointer and no `on_approval` was ever set, or `on_approval` or
                `context` is invalid.
        """
        self._check_stored(on_approval)
        started = graph_input(self.graph, given, state)
        mark = self.driver.input_id(started, input_id)
        return await self.driver.run(started, RunOptions(context, on_approval=on_approval), mark)

    async def resume(
        self,
        answer: Any = None,
        *,
        context: ContextT | ContextFields | None = None,
        decided_by: str | None = None,
        input_id: str | None = None,
        on_approval: OnApproval | None = None,
    ) -> RunResult[ResponseT]:
        """Resume the session: with an answer to its open interrupt, or after a crash.

        Args:
            answer: The person's answer; a mapping of interrupt id → answer if there are several. None after a crash.
                Decisions on calls that wait for approval are made with `graph_agent.approvals`.
            context: Overrides and credentials for this run and the follow-ups after it.
            decided_by: Name of the person who decided on calls, for the history; None for `user`.
            input_id: The answer's own id, unique in the session: 1 to 255 printable characters. The same id again is
                used once, as an input of `run` with an id. None if there is none.
            on_approval: Decides on the calls of this run and its follow-ups, in place of the session's own
                `on_approval`; None to use the session's.

        Returns:
            The result of the input that was resumed; `follow_ups` has the results of the follow-ups.

        Raises:
            InputError: When there is nothing to resume, the answer matches no open interrupt, or a decision does not
                fit its call. The session then waits as before.
            InputConflictError: When `input_id` belongs to another answer, or to an input.
            InputSupersededError: When `input_id` belongs to an input that a later one replaced before its end.
            SessionBusyError: When the session is running.
            RunFailedError: When the input failed, and `on_failure="raise"` is set.
            ConfigError: For the reasons of `run`.
        """
        self._check_stored(on_approval)
        mark = self.driver.answer_id(answer, input_id)
        given = partial(self.driver.answer, answer, decided_by, mark)
        return await self.driver.run(given, RunOptions(context, on_approval=on_approval), mark)

    @with_parameters_of(run)
    def run_sync(self, given: Given, **options: Any) -> RunResult[ResponseT]:
        """Run one input like `run`, with the same options and errors, and block until its end; for a script.

        Raises:
            SyncInLoopError: In the thread of a running event loop, as in a notebook: use `await session.run(...)`.
        """
        refuse_running_loop("Session.run_sync", "session.run")
        return blocking(self.run)(given, **options)

    @with_parameters_of(resume)
    def resume_sync(self, answer: Any = None, **options: Any) -> RunResult[ResponseT]:
        """Resume the session like `resume`, with the same options and errors, and block until the end; for a script.

        Raises:
            SyncInLoopError: In the thread of a running event loop, as in a notebook: use `await session.resume(...)`.
        """
        refuse_running_loop("Session.resume_sync", "session.resume")
        return blocking(self.resume)(answer, **options)

    def stream(
        self,
        given: Given,
        *,
        context: ContextT | ContextFields | None = None,
        control: RunControl | None = None,
        state: Mapping[str, Any] | None = None,
        input_id: str | None = None,
        on_approval: OnApproval | None = None,
        reasoning: bool = False,
    ) -> AsyncGenerator[Part[ResponseT]]:
        """Run one input to its end and yield the parts of the run as they occur; `Done` is last.

        The events of the input, which are its message and the status `RUNNING`, come before its first model call has
        ended, and so before its tokens; the events of steering come before the reply to it.

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
            state: Values of own state fields (see `state_schema`), which this input sets; None to set none.
            input_id: The input's id, unique in the session: 1 to 255 printable characters; None if there is none. The
                same id again runs the input only once: the parts of a stored result are its events, and its answer as
                one `Token`; the parts of an input that is resumed begin where it is resumed.
            on_approval: Decides on the calls of this run and its follow-ups, in place of the session's own
                `on_approval`; None to use the session's. The stream goes on after its decisions,
                without a `Done` between.
            reasoning: Whether the reasoning of the agent's model is among the parts, as `Reasoning`. Default False.

        Raises:
            InputError: When the input is empty, or `state` does not fit the agent's own fields.
            InputConflictError: When `input_id` belongs to an input with other messages or other `state`; raised by the
                first part.
            InputSupersededError: When `input_id` belongs to an input that a later one replaced before its end; raised
                by the first part.
            SessionBusyError: When the session is running; raised by the first part.
            RunFailedError: In place of `Done`, when the input failed, and `on_failure="raise"` is set.
            ConfigError: When the agent has no checkpointer and no `on_approval` was ever set, or `on_approval` is not
                callable; by the first part, when `context` is invalid.
        """
        self._check_stored(on_approval)
        started = graph_input(self.graph, given, state)
        mark, readership = self.driver.input_id(started, input_id), ConsumerTracker()
        options = RunOptions(context, control, on_approval, readership, reasoning=reasoning)
        return ClosingStream(self.driver.parts(started, options, mark), readership)

    @with_parameters_of(stream)
    def stream_sync(self, given: Given, **options: Any) -> Iterator[Part[ResponseT]]:
        """Run one input like `stream`, with the same options, and yield its parts; blocks while it waits for one.

        Leaving the loop before the last part stops the run.

        Raises:
            SyncInLoopError: In the thread of a running event loop, as in a notebook: use `session.stream(...)`.
        """
        refuse_running_loop("Session.stream_sync", "session.stream")
        return blocking_parts(self.stream(given, **options))

    def stream_resume(
        self,
        answer: Any = None,
        *,
        context: ContextT | ContextFields | None = None,
        decided_by: str | None = None,
        control: RunControl | None = None,
        input_id: str | None = None,
        on_approval: OnApproval | None = None,
        reasoning: bool = False,
    ) -> AsyncGenerator[Part[ResponseT]]:
        """Resume the session with an answer to its open interrupt, or after a crash, and yield the parts of the run.

        The parts are those of `stream`, from where the input is resumed.

        Args:
            answer: The person's answer; a mapping of interrupt id → answer if there are several. None after a crash.
            context: Overrides and credentials for this run and its follow-ups.
            decided_by: Name of the person who decided on calls, for the history; None for `user`.
            control: Lets the run be stopped at its next boundary; it then ends with LangGraph's `GraphDrained`.
            input_id: The answer's own id, unique in the session; None if there is none. The same id again is used once.
            on_approval: Decides on the calls of this run and its follow-ups, in place of the session's own
                `on_approval`; None to use the session's.
            reasoning: Whether the reasoning of the agent's model is among the parts, as `Reasoning`. Default False.

        Raises:
            InputError: When there is nothing to resume, or the answer does not fit; raised by the first part. The
                session then waits as before. Also, as in `resume`, when `input_id` belongs to another answer or input.
            SessionBusyError: When the session is running; raised by the first part.
            RunFailedError: In place of `Done`, when the input failed, and `on_failure="raise"` is set.
            ConfigError: For the reasons of `stream`.
        """
        self._check_stored(on_approval)
        mark, readership = self.driver.answer_id(answer, input_id), ConsumerTracker()
        given = partial(self.driver.answer, answer, decided_by, mark)
        options = RunOptions(context, control, on_approval, readership, reasoning=reasoning)
        return ClosingStream(self.driver.parts(given, options, mark), readership)

    async def run_follow_ups(
        self, *, context: ContextT | ContextFields | None = None, control: RunControl | None = None
    ) -> list[RunResult[ResponseT]]:
        """Run the queued follow-ups one after the other, as `run` does after its own input.

        Args:
            context: Overrides and credentials for these runs; None to set none.
            control: Lets the runs be stopped at their next boundary; None if nothing stops them.

        Returns:
            Their results, in order; empty if none is queued, the session is running, or its newest input was not
            answered.

        Raises:
            RunFailedError: When a follow-up failed, and `on_failure="raise"` is set; those after it stay queued.
            ConfigError: For the reasons of `run`.
            InputError: Within a run of this session.
        """
        self._check_stored()
        return await self.driver.run_follow_ups(RunOptions(context, control))

    async def feedback(
        self,
        rating: Rating,
        *,
        note: str = "",
        answer: str | int | None = None,
        by: str | None = None,
        evaluate: bool = False,
    ) -> Event:
        """Store a person's feedback on an answer, without a run and also while one is in progress; return its event.

        The model never receives it. The next step of a run takes it into the history; until then, readers of events get
        it after all other events.

        Args:
            rating: `up` or `down`. A person's newer rating of the same answer replaces the older one.
            note: What the person wrote, at most 4,000 characters; empty for nothing.
            answer: The answer: `seq` of its `agent_response` event, id of its input, id of its message, or the id with
                which an API returned it (`chatcmpl-…`, `resp_…`, `msg_…`); None for the newest answer.
            by: Name of the person; None for `user`.
            evaluate: Whether the answer is to become a case of an evaluation (`graph-agent eval --from-feedback`).

        Raises:
            InputError: When the session has no such answer, the rating is no rating, `by` is no text, or the note is
                no text or too long.
            ConfigError: When the agent has no checkpointer, or neither a Store nor a database for the feedback.
        """
        from graph_agent.session.feedback import give_feedback

        self._check_stored()
        entry = await give_feedback(
            self.saver,
            self._store,
            self.id,
            rating,
            note=note,
            answer=answer,
            by=by,
            evaluate=evaluate,
            agent=self.graph.name or "agent",
        )
        events = await self.events()
        # Its place among the events that no run has taken in.
        at = next(at for at, each in enumerate(events) if each["type"] == "feedback" and each["id"] == entry["id"])
        return events[at]

    @with_parameters_of(feedback)
    def feedback_sync(self, rating: Rating, **options: Any) -> Event:
        """Store feedback like `feedback`, with the same options and errors; blocks, for a script.

        Raises:
            SyncInLoopError: In the thread of a running event loop, as in a notebook: use `await session.feedback(...)`.
        """
        refuse_running_loop("Session.feedback_sync", "session.feedback")
        return blocking(self.feedback)(rating, **options)

    async def rename(self, title: str, *, by: str | None = None) -> None:
        """Give the session a title, without a run and also while one is in progress; lists show it.

        The next step of a run takes the event `rename` into the history; until then, readers of events get it after all
        other events.

        Args:
            title: The title, 1 to 200 characters.
            by: Name of the person; None for `user`.

        Raises:
            InputError: When there is no such session, or the title is blank or longer.
            ConfigError: When the agent has neither a Store nor a database that can keep the title.
        """
        from graph_agent.session.feedback import give_title

        self._check_stored()
        await give_title(self.saver, self._store, self.id, title, by)

    async def revoke_approval(self, name: str, *, delegate: str = "", by: str | None = None) -> None:
        """Take back an `approve(always=True)`, so that later calls wait again; without a run, and also during one.

        It ends the approvals of every `Session` object and every process. A call that is approved already runs. The
        next step of a run takes the event `revocation` into the history; until then, readers of events get it after all
        other events.

        Args:
            name: Name of the calls, as in the event `approval_decision`.
            delegate: The delegate whose calls they are; empty for the agent itself.
            by: Name of the person; None for `user`.

        Raises:
            InputError: When the session has no such approval, or `by` is no text.
            ConfigError: When the agent has no checkpointer, or neither a Store nor a database that can keep the
                revocation.
        """
        from graph_agent.session.standing_approvals import revoke_standing_approval

        self._check_stored()
        await revoke_standing_approval(self.saver, self._store, self.id, (delegate, name), by)

    def _check_stored(self, on_approval: OnApproval | None = None) -> None:
        """Raise `ConfigError` if the agent has no checkpointer, and neither this run nor an earlier one has
        `on_approval`.

        Also raises it if `on_approval` is not callable.
        """
        check_callback(on_approval)
        # A decision resumes a checkpoint, and with it the runs of this session are kept in memory.
        self._is_stored = self._is_stored or on_approval is not None
        if not self._is_stored:
            raise ConfigError(NO_SAVER)

    async def events(self, *, last: int | None = None, after: int = -1) -> list[Event]:
        """Return the session's history, oldest event first; empty for a session that does not exist.

        Args:
            last: Maximum number of events, the newest ones; None for all.
            after: Only events whose `seq` is higher.

        Raises:
            ConfigError: The agent has no checkpointer, so that nothing is stored.
        """
        self._check_stored()
        return await self._memory.get_session_events(self.id, last=last, after=after)

    async def trace(self) -> list[Span]:
        """Return a span for each input, oldest first: what ran when, for how long, and at which cost.

        Empty for a session that does not exist.
        """
        from graph_agent.session.trace import spans_of

        return spans_of(await self.events(), is_interrupted=await self._is_interrupted())

    async def _is_interrupted(self) -> bool:
        """Return whether a crash cut off the newest input, and no process runs it."""
        from graph_agent.session.activity import is_interrupted

        saver = self.graph.checkpointer
        return isinstance(saver, BaseCheckpointSaver) and await is_interrupted(saver, self.id)

    async def show(self, *, open_browser: bool = True) -> Path:
        """Write a page of the session, with its conversation and time axis as they are now, and open it in the browser.

        Args:
            open_browser: Whether to open the page. Default True; with False it is only written.

        Returns:
            Path of the page, an HTML file in the folder of temporary files, which needs no server and is not deleted.
        """
        import webbrowser
        from pathlib import Path
        from tempfile import NamedTemporaryFile

        from graph_agent.web.page import exported_page

        name, cut_off = self.graph.name or "agent", await self._is_interrupted()
        html = exported_page(self.id, await self.events(), name, is_interrupted=cut_off)
        # Not deleted: the browser reads it after this function has returned.
        with NamedTemporaryFile("w", encoding="utf-8", prefix="session-", suffix=".html", delete=False) as file:
            file.write(html)
        path = Path(file.name)
        if open_browser:
            webbrowser.open(path.as_uri())
        return path

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Return what a notebook displays: the table of the session and, if the history can be read within 5 seconds, a
        drawing of its inputs. An error of the history leaves the drawing out.
        """
        shown = {"text/plain": repr(self), "text/html": self._repr_html_()}
        with suppress(Exception):  # a cell shows the table if the history cannot be read
            # The cell's own event loop is running.
            roots = DaemonThreads().submit(lambda: asyncio.run(self.trace())).result(_DRAWN_WITHIN_S)
            from graph_agent.base._internal.svg import image_html
            from graph_agent.session.trace import session_svg

            shown["image/svg+xml"] = svg = session_svg(roots)
            shown["text/html"] += image_html(svg, "time axis")
        return shown

    async def status(self) -> SessionStatus:
        """Return the session's status; `CREATED` before its first input."""
        self._check_stored()
        return await self._memory.get_session_status(self.id)

    async def newest_input_id(self) -> str | None:
        """Return the `input_id` of the session's newest input; None if it has none, and before the first input.

        The input may still run, wait, or have been cut off by a crash.
        """
        self._check_stored()
        stored = input_id_in((await self.driver.state()).metadata or {})
        return None if stored is None else stored.id

    async def interrupts(self) -> list[Interrupt]:
        """Return the open interrupts, which `resume` answers; empty if the session does not wait.

        Those of finished calls are left out.

        Raises `ConfigError` for an agent without a checkpointer.
        """
        self._check_stored()
        return open_interrupts(await self.driver.state())


def check_callback(on_approval: object) -> None:
    """Raise `ConfigError` if `on_approval` is neither None nor callable."""
    if on_approval is not None and not callable(on_approval):
        raise ConfigError(
            f"on_approval={on_approval!r}: give a function of the call, e.g. on_approval=lambda call: True."
        )


def kept_in_memory(graph: GraphT) -> GraphT:
    """Return a copy of an agent's compiled graph that stores sessions in memory, for as long as the copy exists."""
    from langgraph.checkpoint.memory import InMemorySaver

    return graph.copy({"checkpointer": InMemorySaver()})


def graph_input(
    graph: CompiledStateGraph[Any, Any, Any, Any], given: Given, state: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the graph's input, with messages and values of own state fields.

    Args:
        graph: The compiled agent.
        given: The user's input, as text or as messages.
        state: Values of own state fields; None for no values.

    Raises:
        InputError: The text is blank, there are no messages, `given` or `state` has another form, or a value does not
            fit its field.
    """
    if state is not None and not isinstance(state, Mapping):
        raise InputError(f"state={state!r}: give a mapping of own state fields to values, or None.")
    if not state:
        return _input(given)
    custom_state_of(graph).check_input(state)
    return {**_input(given), **state}


def _input(given: Given) -> dict[str, Any]:
    """Return `{"messages": […]}` for a text or for messages. Raises `InputError` for a blank text, for no messages, and
    for another form.

    Messages without an id are copied, because the graph sets the id.
    """
    if isinstance(given, str) and given.strip():
        return {"messages": [HumanMessage(given)]}
    if isinstance(given, Sequence) and not isinstance(given, str) and given:
        try:
            messages = convert_to_messages(given)
            # Copied: the graph sets the id of each, and would take the same object, sent again, for its first message.
            return {"messages": [each if each.id else each.model_copy() for each in messages]}
        except (ValueError, NotImplementedError) as error:
            why = str(error).splitlines()[0].rstrip(".")
            raise InputError(f"A run takes messages, such as HumanMessage('hello'); got {given!r}: {why}.") from None
    raise InputError(f"A run takes the user's input, as text that is not empty or as messages; got {given!r}.")
