"""Executes tasks of A2A clients as inputs of sessions.

A *mark* is the id and content of an input, with which it runs once. A *follow-up* is an input that was queued in the
session to run after the current answer. The reporter sends the updates of a task to its subscribers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from copy import deepcopy
from types import MappingProxyType
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakValueDictionary

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.types import Message, Part, Role, Task, TaskState
from a2a.utils.errors import InternalError, InvalidParamsError, UnsupportedOperationError
from google.protobuf.json_format import MessageToDict
from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl
from langgraph.types import Interrupt

from graph_agent.base._internal.failure_log import log_failure
from graph_agent.base._internal.text import clean
from graph_agent.base.approvals.decisions import DEFAULT_DECIDER
from graph_agent.base.approvals.requests import request_of
from graph_agent.base.errors import (
    InputConflictError,
    InputError,
    InputSupersededError,
    SessionBusyError,
    SessionLostError,
    UserError,
)
from graph_agent.base.input_ids import InputId, as_input_id
from graph_agent.base.input_messages import CONTEXT_MARK, HANDED_MARK
from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.types import SessionStatus
from graph_agent.integrations.delegates.a2a_parts import (
    EXTENSION,
    part_data,
    read_budget,
    read_untrusted_parts,
    text_of_parts,
)
from graph_agent.interfaces.server.a2a.conversations import SessionIdOf, session_id_of
from graph_agent.interfaces.server.a2a.credentials import request_credentials
from graph_agent.interfaces.server.a2a.cross_process import CancelRequests
from graph_agent.interfaces.server.a2a.store import ENDED_STATES
from graph_agent.interfaces.server.a2a.task_run import TaskRun, heartbeats
from graph_agent.interfaces.server.a2a.updates import TaskReporter, question_ids
from graph_agent.interfaces.server.settings import A2A_DEFAULTS
from graph_agent.session.compiled import CompiledAgentGraph
from graph_agent.session.driver import RunHandle
from graph_agent.session.interrupts import joint_question
from graph_agent.session.results import Done, RunResult
from graph_agent.session.session import Session

logger = logging.getLogger("graph_agent.server.a2a.executor")

STOPPED_TEXT = "The server stopped before this task had ended. Send a message in the same conversation to continue."

TAKEN_OVER = (
    "The server stopped this task: its process lost the conversation, which another may have continued. Read the "
    "conversation before you send the message again."
)

_REUSED = (
    "The messageId {id!r} belongs to another message of this conversation. Repeat that message unchanged, or send a "
    "new one with a new id."
)
_REPLACED = (
    "The message {id!r} has no answer: a later message came before it was finished. Read the conversation, and send "
    "what is still needed with a new id."
)

STEERING = "urn:graph-agent:steering:1"
"""URI of the A2A extension whose messages steer a conversation, and do not begin a task."""

SlotFactory = Callable[[str], AbstractContextManager[None]]
"""Returns a context manager that occupies one of a user's task slots.

Entering it raises `NoSlotError` if none is free.
"""

HEARTBEAT_S = 15.0
"""Seconds without an update after which a running task sends a heartbeat."""
CANCEL_S = 10.0
"""Seconds to wait for a run to stop when its task is cancelled."""


class NoSlotError(UserError):
    """The user has too many active tasks. The message is sent to the client."""


def unbounded(user: str) -> AbstractContextManager[None]:
    """Return a context manager that limits nothing. It is the default `SlotFactory`."""
    return nullcontext()


class GraphExecutor(AgentExecutor):
    """Runs an agent's graph for the SDK's request handler.

    A conversation (`contextId`) is a session, and a task is one input of it. Tasks of a conversation run one after the
    other, because a session processes one input at a time. A message is run once in its conversation: the task of a
    repeated `messageId` resumes the run of the first one, or ends as that did. Queued follow-ups of the session run
    after the task's input and belong to no task.

    Final states of a task: `completed` with an answer, also one at a limit (it begins with a sentence about the limit,
    and the metadata has the `stop_reason`); `failed` if the model did not answer; `canceled` if the run was aborted;
    `rejected` if there is nothing to run; `input-required` if the graph waits for an answer. While the server shuts
    down, a run stops at its next superstep boundary, and the task ends as `failed`; the session can be continued.

    Args:
        graph: The agent, compiled with a checkpointer.
        context: Fields of `AgentContext` for every run.
        show_outputs: Whether the outputs of tools are sent to subscribers.
        heartbeat_s: Seconds without an update after which a running task sends a heartbeat.
        session_ids: Returns the session id for a user name and a conversation id.
        cancel_requests: Requests of other processes to cancel tasks; None if there are no other processes.
        slots: Limits how many tasks of one user run at the same time.
    """

    def __init__(
        self,
        graph: CompiledAgentGraph,
        *,
        context: Mapping[str, Any] = MappingProxyType({}),
        show_outputs: bool = False,
        heartbeat_s: float = HEARTBEAT_S,
        session_ids: SessionIdOf = session_id_of,
        cancel_requests: CancelRequests | None = None,
        slots: SlotFactory = unbounded,
    ) -> None:
        self._graph = graph
        self._slots = slots
        # The task's final state reports the failure.
        self._context = {**_defaults(graph), **context, "on_failure": "answer"}
        self._show_outputs = show_outputs
        self._heartbeat_s = heartbeat_s
        self._session_ids = session_ids
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Session id → lock that the running task of the conversation holds."""
        self._running: dict[str, TaskRun] = {}
        """Task id → the run of this process, which may still wait for the lock."""
        self._marks: WeakKeyDictionary[RequestContext, tuple[str, InputId]] = WeakKeyDictionary()
        """Request of a new task → its session and the mark of its message, which the session may not have stored
        yet.
        """
        self._cancel_requests = cancel_requests
        self._listener: asyncio.Task[None] | None = None
        """Polls for requests of other processes to cancel, while a task runs; None at other times."""
        self._draining = False
        self._follow_ups: set[asyncio.Task[None]] = set()
        self._control = RunControl()
        """Stops the runs of follow-ups at their next superstep boundary."""

    def drain(self) -> None:
        """Start no more runs, and stop running ones at their next superstep boundary. Thread-safe."""
        self._draining = True
        self._control.request_drain()
        for run in list(self._running.values()):
            run.control.request_drain()

    def is_working_on(self, task_id: str) -> bool:
        """Return whether this process runs a task, or has it waiting for the earlier tasks of its conversation."""
        return task_id in self._running

    async def drained(self) -> None:
        """Wait until no task and no follow-up runs."""
        while self._running:
            await next(iter(self._running.values())).ended.wait()
        if self._follow_ups:
            await asyncio.wait(self._follow_ups)

    async def aclose(self) -> None:
        """Cancel the running follow-ups, and wait until they have ended. Runs of tasks are not touched."""
        for follow_up in self._follow_ups:
            follow_up.cancel()
        if self._follow_ups:
            await asyncio.wait(self._follow_ups)

    async def check_new(self, context: RequestContext) -> None:
        """Check the message id of a message that begins a task, and reserve the id for this message.

        Does nothing for a message without an id, and for an invalid one, which its task reports. Raises
        `InvalidParamsError` if another message of the conversation has the id, the session has received a later message
        before the one with this id was answered, or the request has no task id or conversation id.
        """
        driver = self._session(context, RunHandle()).driver
        try:
            given = {"messages": _input(context.message)}
            mark = driver.input_id(given, _input_id(context.message))
        except InputError:
            return  # the task reports it
        if mark is None:
            return
        try:
            for session_id, other in list(self._marks.values()):
                if session_id == driver.id:
                    mark.names(other, session_id)
            # Before the first await: of two messages with one id that arrive together, the second is refused.
            self._marks[context] = driver.id, mark
            await driver.inputs.check(given, mark)
        except InputConflictError:
            self._marks.pop(context, None)
            raise InvalidParamsError(message=_REUSED.format(id=mark.id)) from None
        except InputSupersededError:
            self._marks.pop(context, None)
            raise InvalidParamsError(message=_REPLACED.format(id=mark.id)) from None

    async def steer(self, message: Message, user: str) -> Message:
        """Send the text of a message to the model of its conversation, which reads it before the next plan; return a
        fixed message that confirms this.

        Raises `InvalidParamsError` if the message names no existing conversation, or has no text.

        Args:
            message: The client's message.
            user: Name of the authenticated user; empty if there is none.
        """
        session = Session(self._graph, self._session_ids(user, message.context_id))
        try:
            if not message.context_id or await session.status() == SessionStatus.CREATED:
                raise InputError("A message that steers names a conversation in contextId, or its task in taskId.")
            await session.steer(clean(text_of_parts(message.parts)))
        except InputError as error:
            raise InvalidParamsError(message=str(error)) from None
        return Message(
            message_id=uuid4().hex,
            context_id=message.context_id,
            role=Role.ROLE_AGENT,
            parts=[Part(text="The message is read before the next plan.")],
            extensions=[STEERING],
        )

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Run one message of a task until the task ends or asks a question, and put the updates into `event_queue`.

        A new task is reported as submitted first. Failures are updates, too:

        - If the message is invalid, the session busy or no slot free, the task is rejected. A task that still waits for
          an answer instead asks its question again, with the reason; one that was cancelled is reported as canceled.
        - If the server stops, or loses the session, the task fails with a text about how to continue.
        - Any other exception is logged, and the task fails with only the type of the exception.

        Raises `UnsupportedOperationError` if the task has ended already, and `InvalidParamsError` if the request has no
        task id or conversation id.
        """
        task_id, context_id = _ids(context)
        reporter = TaskReporter(event_queue, task_id, context_id, show_outputs=self._show_outputs)
        known = context.current_task
        if known is not None and known.status.state in ENDED_STATES:
            # The task ended while the message was on its way; an ended task must not restart.
            raise UnsupportedOperationError(
                message="The task has ended. Send the message without its id to continue the conversation."
            )
        # Copied: the SDK mutates its task object with each update.
        question = deepcopy(known.status.message) if known is not None and _is_waiting(known) else None
        run = self._begin(task_id)
        try:
            if known is None:
                await reporter.submitted(context.message)
            await self._run_message(run, context, reporter)
        except (InputError, NoSlotError, SessionBusyError) as error:
            if run.cancelled:
                await reporter.cancelled()
            elif question is not None and not isinstance(error, InputError):
                await reporter.ask_again(question, str(error))
            elif question is not None and (open_now := await self._still_asked(context, question)):
                # Only this message is refused: the person can still answer.
                await reporter.ask_again(reporter.question(open_now), str(error))
            else:
                await reporter.rejected(str(error))
        except GraphDrained:
            await reporter.failed(STOPPED_TEXT)
        except SessionLostError as error:
            log_failure(logger, f"The task {task_id}", error)
            await reporter.failed(TAKEN_OVER)
        except Exception as error:  # noqa: BLE001 - any failure ends the task as failed; the cause is logged
            log_failure(logger, f"The task {task_id}", error)
            await reporter.failed(f"The agent could not run this task: {type(error).__name__}.")
        finally:
            self._end(task_id, run)

    async def _still_asked(self, context: RequestContext, question: Message) -> list[Interrupt]:
        """Return the session's open interrupts if the question is about at least one of them; otherwise an empty
        list.
        """
        open_now = await self._session(context, RunHandle()).interrupts()
        return open_now if question_ids(question) & {each.id for each in open_now} else []

    def _begin(self, task_id: str) -> TaskRun:
        """Register a new run of a task, and return it.

        If this process polls for requests of other processes to cancel and no poll runs, start one.
        """
        # Registered before the first await, so that a request to cancel finds it.
        run = self._running[task_id] = TaskRun()
        if self._cancel_requests is not None and self._listener is None:
            self._listener = asyncio.create_task(self._cancel_requests.listen(self._cancel_here))
        return run

    def _end(self, task_id: str, run: TaskRun) -> None:
        """Remove a run of a task, and wake those that wait for its end. The last run stops the poll for requests to
        cancel.
        """
        del self._running[task_id]
        run.ended.set()
        if self._listener is not None and not self._running:
            self._listener.cancel()
            self._listener = None

    async def _run_message(self, run: TaskRun, context: RequestContext, reporter: TaskReporter) -> None:
        """Wait for the earlier tasks of the conversation, run the message, and report how the task ends.

        The session's follow-ups then run in the background. A task that is cancelled while it waits is reported as
        cancelled. After a cancelled task, no follow-ups run. Raises `GraphDrained` while the server is stopping, and
        `NoSlotError` if the user has too many active tasks.
        """
        session = self._session(context, run.scope)
        known = context.current_task
        is_answer = known is not None and _is_waiting(known)
        lock = self._locks.setdefault(session.id, asyncio.Lock())
        async with run.acquire(lock) as acquired:
            if not acquired:
                if known is not None:
                    await self.forget(context.call_context.user.user_name, known)
                await reporter.cancelled()
                return
            if self._draining:
                raise GraphDrained
            with self._slots(context.call_context.user.user_name):
                await reporter.working()
                async with heartbeats(reporter, self._heartbeat_s):
                    result = await self._run(session, run, context, reporter, known if is_answer else None)
            if not run.cancelled:
                follow_up = asyncio.create_task(
                    self._run_follow_ups(session.id, lock, context.call_context.user.user_name)
                )
                self._follow_ups.add(follow_up)
                follow_up.add_done_callback(self._follow_ups.discard)
        await self._report_end(result, reporter)

    async def _run_follow_ups(self, session_id: str, lock: asyncio.Lock, user: str) -> None:
        """Wait for the conversation's lock, and run the session's queued follow-ups, i.e. inputs that belong to no
        task.

        If the server stops, the rest stays queued. Other errors are logged.

        Args:
            session_id: Id of the session.
            lock: The lock of the conversation, which excludes its tasks.
            user: Name of the authenticated user; empty if there is none.
        """
        async with lock:
            try:
                session = Session(self._graph, session_id)
                await session.run_follow_ups(context=self._context_of(user), control=self._control)
            except GraphDrained:
                return  # the session continues from its checkpoint
            except Exception as error:  # noqa: BLE001 - no caller waits for it, so the error is logged
                log_failure(logger, "Running a follow-up", error)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Stop a task's run and wait up to 10 seconds for its end. The run itself reports the task as cancelled.

        A task that waits for an answer is aborted and reported here. Does nothing for a task that has just ended.
        Raises `InternalError` if the run does not stop in time.
        """
        task_id, context_id = _ids(context)
        known = context.current_task
        if run := self._running.get(task_id):
            run.cancel()
            try:
                async with asyncio.timeout(CANCEL_S):
                    await run.ended.wait()
            except TimeoutError:
                raise InternalError(
                    message=f"The run of this task did not stop within {CANCEL_S:g} s of the request to cancel it, and "
                    "the task ends as failed. Continue the conversation with another message."
                ) from None
        elif known is not None and _is_waiting(known):
            await self.forget(context.call_context.user.user_name, known)
            await TaskReporter(event_queue, task_id, context_id, show_outputs=False).cancelled()
        # Otherwise the task has just ended, and its final state is being stored.

    def _cancel_here(self, task_id: str) -> None:
        """Abort the run of a task if this process has it; the run itself reports the end. Does nothing otherwise."""
        # The run reports its own end, to the database and to subscribers.
        if run := self._running.get(task_id):
            run.cancel()

    async def forget(self, user: str, task: Task) -> None:
        """Abort the session of a task if one of the interrupts that the task's question is about is still open.

        Does nothing otherwise, or if a run holds the session.
        """
        session = Session(self._graph, self._session_ids(user, task.context_id))
        if question_ids(task.status.message).isdisjoint(each.id for each in await session.interrupts()):
            return
        # A run that holds the session has answered or dropped the question; it belongs to another task.
        with suppress(SessionBusyError):
            await session.driver.control.settle()

    def _context_of(self, user: str) -> dict[str, Any]:
        """Return the context of a user's runs: that of the server, to which `caller` is added for an authenticated user
        of an agent with a memory.
        """
        identified = user and self._graph.builder.deps.memory is not None
        return {**self._context, "caller": user} if identified else self._context

    def _session(self, context: RequestContext, scope: RunHandle) -> Session:
        """Return the session of a request's conversation, with the limits that a delegating agent has sent in the
        message.

        Raises `InvalidParamsError` if the request has no task id or conversation id.

        Args:
            context: The SDK's context of the request.
            scope: The handle of this task's run, by which the session's run can be aborted.
        """
        _, context_id = _ids(context)
        user = context.call_context.user.user_name
        metadata = MessageToDict(context.message.metadata) if context.message is not None else {}
        session = Session(self._graph, self._session_ids(user, context_id), configurable=read_budget(metadata))
        session.driver.abort_with(scope)
        return session

    async def _run(
        self, session: Session, run: TaskRun, request: RequestContext, reporter: TaskReporter, waiting: Task | None
    ) -> RunResult | None:
        """Run a message as a new input, or as the answer to a waiting task, and report the parts of the run.

        The run has the credentials of the request's headers. The message id is the id of the input, so that it runs
        once. A decision is recorded with the user's name. Returns the result; None if the stream ends without one.
        Raises `InputError` for a message that is no input or answers no open question, and `InvalidParamsError` if a
        credential header occurs twice.

        Args:
            session: The session of the conversation.
            run: The run of the task, which can be cancelled and drained.
            request: The SDK's context of the request, with the message.
            reporter: Sends updates to subscribers.
            waiting: The task whose question the message answers; None for a new input.
        """
        message, credentials = request.message, request_credentials(request.call_context)
        context = self._context_of(request.call_context.user.user_name)
        context = {**context, "credentials": credentials} if credentials else context
        if waiting is not None:
            parts = session.stream_resume(
                _answer_to(question_ids(waiting.status.message), await session.interrupts(), message),
                context=context,
                # The name is never the message's own, because the history records it.
                decided_by=request.call_context.user.user_name or DEFAULT_DECIDER,
                control=run.control,
                input_id=_input_id(message),
            )
        else:
            parts = session.stream(_input(message), context=context, control=run.control, input_id=_input_id(message))
        # A stream that is left without `aclose` would keep the session busy.
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, Done):
                    return part.result
                await reporter.part(part)
        return None

    async def _report_end(self, result: RunResult | None, reporter: TaskReporter) -> None:
        """Report the end of a task from the result of its run.

        The task asks a question if the run has interrupts; otherwise it is cancelled after an abort, failed after a
        failure or without a result (None), and else completed.
        """
        if result is None:
            await reporter.failed("The run ended without a result.")
        elif result.interrupts:
            await reporter.input_required(result.interrupts, result)
        elif result.status == SessionStatus.ABORTED:
            await reporter.cancelled(result)
        elif result.status == SessionStatus.FAILED:
            await reporter.failed(result.answer or "The model did not answer.", result)
        else:
            await reporter.completed(result)


def _defaults(graph: CompiledAgentGraph) -> dict[str, Any]:
    """Return those defaults of A2A runs, field → value (`max_steps` is 10), that neither the agent's configuration nor
    its context class sets.
    """
    config, context = graph.builder.config, graph.builder.deps.context_schema

    def is_set(name: str) -> bool:
        """Return whether the agent's configuration or its context class sets a field, or the configuration has another
        value than the built-in default.
        """
        built_in = LoopConfig.model_fields[name].default
        return (
            name in config.model_fields_set
            or getattr(config, name) != built_in
            or context.model_fields[name].default is not None
        )

    return {name: value for name, value in A2A_DEFAULTS.items() if not is_set(name)}


def _is_waiting(task: Task) -> bool:
    """Return whether a task waits for an answer."""
    return task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED


def _ids(context: RequestContext) -> tuple[str, str]:
    """Return the task id and the conversation id of a request; raise `InvalidParamsError` if one is missing."""
    if not context.task_id or not context.context_id:
        raise InvalidParamsError(message="A task has an id and a context id.")
    return context.task_id, context.context_id


def _input_id(message: Message | None) -> str | None:
    """Return the id by which a message's input runs once; None for a message without an id."""
    return as_input_id(message.message_id) if message is not None and message.message_id else None


def _input(message: Message | None) -> list[AnyMessage]:
    """Convert a client's message to input: first the context that a delegating agent has forwarded, each part as a
    message marked as context, then the user's message.

    Parts that a delegating agent has declared as untrusted are recorded with the user's message. Raises `InputError` if
    the message has neither text nor data besides the forwarded context.
    """
    parts = list(message.parts) if message is not None else []
    forwarded = [part for part in parts if EXTENSION in part.metadata]
    own = [part for part in parts if EXTENSION not in part.metadata]
    context: list[AnyMessage] = [
        HumanMessage(clean(part.text), additional_kwargs={CONTEXT_MARK: True}) for part in forwarded
    ]
    text = text_of_parts(own)
    if not text.strip():
        raise InputError("The message contains nothing that this agent can read; send text or data.")
    untrusted = read_untrusted_parts(MessageToDict(message.metadata)) if message is not None else []
    marks = {HANDED_MARK: [clean(part) for part in untrusted]} if untrusted else {}
    return [*context, HumanMessage(text, additional_kwargs=marks)]


def _answer_to(question: set[str], open_now: Sequence[Interrupt], message: Message | None) -> Any:
    """Return a client's answer in the form that `Session.resume` takes.

    That is the answer itself for a question about approvals, which may cover several interrupts; else a dict from the
    id of the one interrupt to the answer.

    Args:
        question: Ids of the interrupts that the task's question is about.
        open_now: The session's open interrupts.
        message: The client's message.

    Raises:
        InputError: None of the interrupts is open any more, or the question has changed since.
    """
    if question.isdisjoint(each.id for each in open_now):
        raise InputError("The question is not open any more: the conversation continued without an answer.")
    asked, _ = joint_question(open_now)
    if question != {each.id for each in asked}:
        raise InputError("The question has changed, and the answer was not used. Answer the new question.")
    answer = _answer(message)
    is_joint = answer is not None and request_of(asked[0]) is not None
    return answer if is_joint else {asked[0].id: answer}


def _answer(message: Message | None) -> Any:
    """Return the value of a message that has a single data part; otherwise the text of its parts; empty without a
    message.
    """
    parts = list(message.parts) if message is not None else []
    if len(parts) == 1 and parts[0].WhichOneof("content") == "data":
        return part_data(parts[0])
    return text_of_parts(parts)
