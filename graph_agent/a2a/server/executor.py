"""Tasks of A2A clients, run as inputs of our sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, aclosing, nullcontext, suppress
from typing import Any
from weakref import WeakValueDictionary

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.types import Message, Part, Task, TaskState
from a2a.utils.errors import InvalidParamsError, UnsupportedOperationError
from google.protobuf.json_format import MessageToDict
from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl
from langgraph.types import Interrupt

from graph_agent._internal.failure_log import log_failure
from graph_agent._internal.text import clean
from graph_agent.a2a.client.reply import content_of
from graph_agent.a2a.server.credentials import brought_by
from graph_agent.a2a.server.other_processes import Cancels
from graph_agent.a2a.server.sessions import SessionIds, session_id_of
from graph_agent.a2a.server.store import ENDED
from graph_agent.a2a.server.updates import TaskTeller, question_of
from graph_agent.a2a.server.work import Work, heartbeats
from graph_agent.a2a.wire import EXTENSION, read_left, whole
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.errors import InputError, SessionBusyError, SessionLostError, UserError
from graph_agent.runs.run import RUN, Around
from graph_agent.session.results import Done, RunResult
from graph_agent.session.session import Session
from graph_agent.state.messages import CONTEXT_MARK
from graph_agent.types import SessionStatus

logger = logging.getLogger(__name__)

A2A_DEFAULTS: Mapping[str, Any] = {"max_steps": 10}
"""What a run takes here where the agent's file says nothing: more steps."""

STOPPED = "The server stopped before this task had ended. Send a message in the same conversation to go on."

TAKEN_OVER = (
    "The server stopped this task: its process lost the conversation, which another may have continued. Read the "
    "conversation before you send the message again."
)

REQUEST = "__graph_agent_a2a"
"""Key in a run's `configurable`: the `task_id`, `context_id` and `message_id` it comes from; it is not stored."""


class NoPlaceError(UserError):
    """As many of a user's tasks are at work as may be; its message is for the user."""


Held = Callable[[str], AbstractContextManager[None]]
"""Holds a user's place while a task is at work; raises a `NoPlaceError` where there is none left."""

HEARTBEAT_S = 15.0
CANCEL_S = 10.0
"""Seconds that a run has to stop when its task is cancelled."""


def unbounded(user: str) -> AbstractContextManager[None]:
    """A place for every task."""
    return nullcontext()


class GraphExecutor(AgentExecutor):
    """Runs an agent's graph for the SDK's request handler.

    A conversation (`contextId`) is a session, and a task is one input of it. Tasks of one conversation run one after
    the other, as a session takes one input at a time. What is queued in the session to follow up with is run behind a
    task's own input, and belongs to no task.

    How a task ends: `completed` with an answer, also where a limit was met (the answer begins with the sentence that
    says so, and the metadata has the `stop_reason`); `failed` where the model did not answer; `canceled` where the run
    was aborted; `rejected` where there is nothing to run; `input-required` where the graph waits for a person. When the
    server is to stop, a run stops at its next boundary, and its task has `failed`; the session goes on from there.

    Args:
        graph: The agent, with a checkpointer.
        context: Overrides for every run.
        show_outputs: Whether what tools gave is told to those who watch.
        heartbeat_s: Seconds of silence after which a running task says that it is alive.
        session_ids: Makes sessions' ids.
        cancels: Tells which tasks other processes want cancelled; None where there is no other process.
        held: Bounds how many tasks of a user are at work at the same time.
    """

    def __init__(
        self,
        graph: CompiledAgentGraph,
        *,
        context: Mapping[str, Any] = A2A_DEFAULTS,
        show_outputs: bool = False,
        heartbeat_s: float = HEARTBEAT_S,
        session_ids: SessionIds = session_id_of,
        cancels: Cancels | None = None,
        held: Held = unbounded,
    ) -> None:
        self._graph = graph
        self._held = held
        # A task that fails tells so itself.
        self._context = {**context, "on_failure": "answer"}
        self._show_outputs = show_outputs
        self._heartbeat_s = heartbeat_s
        self._session_ids = session_ids
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._at_work: dict[str, Work] = {}
        self._cancels = cancels
        self._listening: asyncio.Task[None] | None = None
        self._draining = False
        self._following: set[asyncio.Task[None]] = set()
        self._control = RunControl()
        """Stops the runs of follow-ups at their next boundary."""

    def drain(self) -> None:
        """Begin no more runs, and let those under way stop at their next boundary. Any thread may call it."""
        self._draining = True
        self._control.request_drain()
        for work in list(self._at_work.values()):
            work.control.request_drain()

    def works_on(self, task_id: str) -> bool:
        """Whether a task is at work here, or waits for its turn."""
        return task_id in self._at_work

    async def drained(self) -> None:
        """Wait until no task is at work."""
        while self._at_work:
            await next(iter(self._at_work.values())).ended.wait()
        if self._following:
            await asyncio.wait(self._following)

    async def aclose(self) -> None:
        """Stop the follow-ups at work."""
        for following in self._following:
            following.cancel()
        if self._following:
            await asyncio.wait(self._following)

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Run one message of a task to its end, or to its question."""
        task_id, context_id = _ids(context)
        teller = TaskTeller(event_queue, task_id, context_id, show_outputs=self._show_outputs)
        known = context.current_task
        if known is not None and known.status.state in ENDED:
            # The message was sent while the task was at work; what has ended must not begin again.
            raise UnsupportedOperationError(message="The task has ended. Send the message without its id to go on.")
        asked = _copy(known.status.message) if known is not None and _waits(known) else None
        work = self._begin(task_id)
        try:
            if known is None:
                await teller.submitted(context.message)
            await self._take_up(work, context, teller)
        except (InputError, NoPlaceError, SessionBusyError) as error:
            if work.cancelled:
                await teller.cancelled()
            elif asked is not None and not isinstance(error, InputError):
                await teller.asks_again(asked, str(error))
            else:
                await teller.rejected(str(error))
        except GraphDrained:
            await teller.failed(STOPPED)
        except SessionLostError as error:
            log_failure(logger, f"The task {task_id}", error)
            await teller.failed(TAKEN_OVER)
        except Exception as error:  # noqa: BLE001 - the client hears that it failed, and the operator why
            log_failure(logger, f"The task {task_id}", error)
            await teller.failed(f"The agent could not run this task: {type(error).__name__}.")
        finally:
            self._end(task_id, work)

    def _begin(self, task_id: str) -> Work:
        work = self._at_work[task_id] = Work()
        if self._cancels is not None and self._listening is None:
            self._listening = asyncio.create_task(self._cancels.listen(self._cancel_here))
        return work

    def _end(self, task_id: str, work: Work) -> None:
        del self._at_work[task_id]
        work.ended.set()
        if self._listening is not None and not self._at_work:
            self._listening.cancel()
            self._listening = None

    async def _take_up(self, work: Work, context: RequestContext, teller: TaskTeller) -> None:
        session = self._session(context, work.around)
        known = context.current_task
        answers = known is not None and _waits(known)
        turn = self._turns.setdefault(session.id, asyncio.Lock())
        async with work.in_turn(turn) as has_turn:
            if not has_turn:
                if known is not None:
                    await self.forget(context.call_context.user.user_name, known)
                await teller.cancelled()
                return
            if self._draining:
                raise GraphDrained
            with ExitStack() as place:
                place.enter_context(self._held(context.call_context.user.user_name))
                await teller.working()
                async with heartbeats(teller, self._heartbeat_s):
                    result = await self._run(session, work, context, teller, known if answers else None)
                if not work.cancelled:
                    following = asyncio.create_task(self._run_follow_ups(session.id, turn, place.pop_all()))
                    self._following.add(following)
                    following.add_done_callback(self._following.discard)
        await self._settle(result, teller)

    async def _run_follow_ups(self, session_id: str, turn: asyncio.Lock, place: ExitStack) -> None:
        """Run what is queued in a conversation's session; it belongs to no task, and its answers are in the history."""
        with place:
            async with turn:
                try:
                    await Session(self._graph, session_id).run_follow_ups(context=self._context, control=self._control)
                except GraphDrained:
                    return  # the session goes on from there
                except Exception as error:  # noqa: BLE001 - nobody waits for it
                    log_failure(logger, "Running a follow-up", error)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Stop a task's run; the task is cancelled when the run has stopped, so that status and history agree."""
        task_id, context_id = _ids(context)
        known = context.current_task
        if work := self._at_work.get(task_id):
            work.cancel()
            async with asyncio.timeout(CANCEL_S):
                await work.ended.wait()
        elif known is not None and _waits(known):
            await self.forget(context.call_context.user.user_name, known)
            await TaskTeller(event_queue, task_id, context_id, show_outputs=False).cancelled()
        # Any other has ended this moment, and how it did is on its way to the store.

    def _cancel_here(self, task_id: str) -> None:
        # It tells of its end itself, to the database as to those who watch.
        if work := self._at_work.get(task_id):
            work.cancel()

    async def forget(self, user: str, task: Task) -> None:
        """Settle a task's session, should it wait for a person to answer what the task has asked."""
        session = Session(self._graph, self._session_ids(user, task.context_id))
        if question_of(task) not in [each.id for each in await self._asked(session)]:
            return
        around = Around()
        around.abort()
        # Whoever runs the session by now has taken the question up, or let it go; that run is not this task's to stop.
        with suppress(SessionBusyError):
            await self._graph.ainvoke(None, {"configurable": {"thread_id": session.id, RUN: around}})

    async def _asked(self, session: Session) -> tuple[Interrupt, ...]:
        """What a session waits for a person to answer; empty when it waits for nothing."""
        return (await self._graph.aget_state({"configurable": {"thread_id": session.id}})).interrupts

    def _session(self, context: RequestContext, around: Around) -> Session:
        task_id, context_id = _ids(context)
        user = context.call_context.user.user_name
        metadata = MessageToDict(context.message.metadata) if context.message is not None else {}
        message_id = context.message.message_id if context.message is not None else ""
        about = {"task_id": task_id, "context_id": context_id, "message_id": message_id}
        configurable = {**read_left(metadata), REQUEST: about, RUN: around}
        return Session(self._graph, self._session_ids(user, context_id), configurable=configurable)

    async def _run(
        self, session: Session, work: Work, request: RequestContext, teller: TaskTeller, asked: Task | None
    ) -> RunResult | None:
        message, secret = request.message, brought_by(request.call_context)
        context = {**self._context, "credentials": secret} if secret else self._context
        if asked is not None:
            # Several may wait, of other tasks too; an answer is for the one that was told, and the others ask again.
            question = question_of(asked)
            if question not in [each.id for each in await self._asked(session)]:
                raise InputError("The question is not open any more: the conversation has gone on without an answer.")
            parts = session.stream_resume({question: _answer(message)}, context=context, control=work.control)
        else:
            parts = session.stream(_input(message), context=context, control=work.control)
        # Left in the middle, an open stream would keep the session busy.
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, Done):
                    return part.result
                await teller.part(part)
        return None

    async def _settle(self, result: RunResult | None, teller: TaskTeller) -> None:
        if result is None:
            await teller.failed("The run ended without a result.")
        elif result.interrupts:
            await teller.asks(result.interrupts, result)
        elif result.status == SessionStatus.ABORTED:
            await teller.cancelled(result)
        elif result.status == SessionStatus.FAILED:
            await teller.failed(result.answer or "The model did not answer.", result)
        else:
            await teller.answered(result)


def _waits(task: Task) -> bool:
    return task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED


def _copy(message: Message) -> Message:
    # The task is the SDK's, which changes it as it is told of it.
    copy = Message()
    copy.CopyFrom(message)
    return copy


def _ids(context: RequestContext) -> tuple[str, str]:
    if not context.task_id or not context.context_id:
        raise InvalidParamsError(message="A task has an id and a context id.")
    return context.task_id, context.context_id


def _input(message: Message | None) -> list[AnyMessage]:
    """What the client said, as the user's message, behind what it passes on for context."""
    parts = list(message.parts) if message is not None else []
    passed_on = [part for part in parts if EXTENSION in part.metadata]
    own = [part for part in parts if EXTENSION not in part.metadata]
    context: list[AnyMessage] = [
        HumanMessage(clean(part.text), additional_kwargs={CONTEXT_MARK: True}) for part in passed_on
    ]
    said = _text(own)
    if not said.strip():
        raise InputError("The message says nothing that this agent can read; send text, or data.")
    return [*context, HumanMessage(said)]


def _answer(message: Message | None) -> Any:
    """What the client answered: text, or the data itself when there is nothing else."""
    parts = list(message.parts) if message is not None else []
    if len(parts) == 1 and parts[0].WhichOneof("content") == "data":
        return whole(MessageToDict(parts[0].data))
    return _text(parts)


def _text(parts: Iterable[Part]) -> str:
    shown = content_of(parts).shown
    return shown if isinstance(shown, str) else "".join(block.get("text", "") for block in shown)
