"""Keeps calls open whose server has asked the user a question, until an answer arrives.

LangGraph runs a node again after an interrupt. A call that waits for an answer therefore lives longer than the task
that made it: the interrupted task leaves it here, and the task of the resumed run finds it by its key. In another
process, that task sends its answer through the Store, and the process that holds the call returns the next question or
the result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import mcp.types as types
from mcp.shared.session import ProgressFnT

from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base._internal.polling import POLL_S, poll_forever
from graph_agent.base.approvals.elicitation import ElicitationRequest
from graph_agent.base.inbox import ControlMessage, StoreInbox, new_note
from graph_agent.base.types import NO_USAGE, Usage
from graph_agent.integrations.mcp.messages import McpCallError

logger = get_logger("graph_agent.mcp")

QuestionParams = types.ElicitRequestParams | types.CreateMessageRequestParams
"""A question to the user, or to the agent's model."""
ClientReply = types.ElicitResult | types.CreateMessageResult | types.ErrorData
Asker = Callable[[QuestionParams], Awaitable[ClientReply]]
"""Answers one question of a server; cancelled when the question no longer matters."""


@dataclass(slots=True, eq=False)
class OpenQuestion:
    """A question of the server that has no answer yet."""

    params: QuestionParams
    answer: asyncio.Future[ClientReply]
    """Resolved with the reply."""


@dataclass(slots=True, eq=False)
class Asked:
    """An interrupt that was raised for the call."""

    value: ElicitationRequest
    """The value of the interrupt: the question for the user."""
    question: OpenQuestion | None = None
    """The question to answer; None if it has been answered, or was asked before the call was repeated."""


@dataclass(eq=False)
class SuspendedCall:
    """A call that runs on while its agent's session waits; belongs to the event loop of the servers."""

    key: str
    """Idempotency key of the call."""
    session_id: str
    """Id of the agent's session."""
    wave: str
    """Id of the call's wave (parallel batch), which begins with the graph that planned it."""
    asked: list[Asked] = field(default_factory=list)
    """The interrupts so far, in the order of the task's interrupts."""
    answers: dict[str, list[Any]] = field(default_factory=dict)
    """Digest of a question → answers from an earlier process that this call has not used yet."""
    expires: asyncio.TimerHandle | None = None
    """Timer that cancels the call if no answer arrives; None while a task works on the call."""
    refused: bool = False
    """Whether the server has refused to run the call until its open questions are answered."""
    samples: int = 0
    """Number of requests to the agent's model so far."""
    usage: Usage = field(default_factory=lambda: NO_USAGE)
    """Usage of these requests that no task has reported yet."""
    continue_for: Callable[[str, Any], Awaitable[dict[str, Any]]] | None = None
    """Continues the call with an answer from another process, given the question's digest; see `answer_elsewhere`."""
    on_progress: ProgressFnT | None = None
    """Receives the progress of the call in the newest task; None to drop it."""
    _task: asyncio.Task[types.CallToolResult] | None = None
    """The task that makes the call; None before its start."""
    _open: list[OpenQuestion] = field(default_factory=list)
    """The open questions of the server, oldest first."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a question was added."""

    def start(self, work: Coroutine[Any, Any, types.CallToolResult]) -> None:
        """Start the call as an asyncio task of its own, which outlives the graph's task."""
        self._task = asyncio.create_task(work, name="mcp-call")
        # Retrieved here, because no task may come back for the error.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def ask(self, params: QuestionParams) -> ClientReply:
        """Add a question of the server, and wait for its answer. A cancellation removes the question."""
        question = OpenQuestion(params, asyncio.get_running_loop().create_future())
        self._open.append(question)
        self._changed.set()
        try:
            return await question.answer
        finally:
            if question in self._open:
                self._open.remove(question)

    def answer(self, question: OpenQuestion, reply: ClientReply) -> bool:
        """Deliver the reply to a question, which is open no longer; return False if the question is void.

        A question is void if the session with the server has ended, or it was answered already.
        """
        if question.answer.done():
            return False
        # Removed here, because `ask` continues later.
        self._open.remove(question)
        question.answer.set_result(reply)
        return True

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Pass the call's progress to the newest task of the graph; dropped while there is none.

        `total` is the value of `progress` at the end, None if the server does not know it; `message` describes the
        progress.
        """
        if self.on_progress is not None:
            await self.on_progress(progress, total, message)

    async def step(self) -> OpenQuestion | types.CallToolResult:
        """Wait for the call's oldest open question or its result, and return it. The result comes first.

        Cancelling this cancels the call. Raises the errors of the call, and `McpCallError` if it was cancelled.
        """
        assert self._task is not None
        changed: asyncio.Task[bool] | None = None
        try:
            while not self._task.done() and not self._open:
                self._changed.clear()
                changed = asyncio.create_task(self._changed.wait())
                await asyncio.wait({self._task, changed}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
        except asyncio.CancelledError:
            if changed is not None:
                changed.cancel()
            self._task.cancel()
            raise
        if not self._task.done():
            return self._open[0]
        if self._task.cancelled():
            raise McpCallError("The call was cancelled while its server waited for an answer.", may_have_run=True)
        return self._task.result()

    def cancel(self) -> None:
        """Cancel the call; the server is notified. Does nothing if it has ended."""
        if self.expires is not None:
            self.expires.cancel()
        if self._task is not None:
            self._task.cancel()


def _graph(wave: str) -> str:
    """Return the part of a wave's id that names the graph's run."""
    return wave.rsplit("/", 3)[0]


class SuspendedCalls:
    """The calls of one server that a later task may continue.

    Args:
        keep_s: Seconds after which a call is cancelled if its question has no answer.
    """

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._calls: dict[str, SuspendedCall] = {}
        self._watching: asyncio.Task[Any] | None = None
        self._handed: set[asyncio.Task[None]] = set()
        """Tasks that continue calls for other processes."""

    def take(self, key: str) -> SuspendedCall | None:
        """Return the call with this key to continue it, and stop its timer; None if there is none."""
        call = self._calls.get(key)
        if call is not None and call.expires is not None:
            call.expires.cancel()
            call.expires = None
        return call

    def add(self, call: SuspendedCall) -> None:
        """Add a call that has started; end waiting calls of the session's earlier waves, which cannot be continued."""
        for other in [*self._calls.values()]:
            # LangGraph never goes back to an earlier wave of the same run.
            is_earlier = other.wave != call.wave and _graph(other.wave) == _graph(call.wave)
            if other.session_id == call.session_id and is_earlier and other.expires is not None:
                self.end(other)
        self._calls[call.key] = call

    def leave(self, call: SuspendedCall) -> None:
        """Leave a registered call waiting for an answer: drop its progress, and cancel and remove it after `keep_s`
        seconds, unless it is taken before."""
        call.on_progress = None
        call.expires = asyncio.get_running_loop().call_later(self._keep_s, self._expire, call)

    def end(self, call: SuspendedCall) -> None:
        """Remove a call, and cancel it if it runs; after the last call, stop reading the Store for answers."""
        call.cancel()
        self._calls.pop(call.key, None)
        if not self._calls and self._watching is not None:
            self._watching.cancel()

    def close(self) -> None:
        """Cancel and remove all calls, including those that are continued for other processes."""
        for task in self._handed:
            task.cancel()
        for call in [*self._calls.values()]:
            self.end(call)

    def watch(self, inbox: StoreInbox) -> None:
        """Continue calls with the answers that other processes put into the Store, in a task, while any call waits."""
        if self._watching is None or self._watching.done() or self._watching.cancelling():
            look = partial(self._look, inbox)
            self._watching = asyncio.create_task(poll_forever(look, POLL_S, logger, "Reading answers from the Store"))

    async def _look(self, inbox: StoreInbox) -> None:
        """Read the answers in the Store, and continue the suspended calls of this process to which they belong, in
        tasks.

        Old notes, which a killed process has left, are removed.
        """
        notes = await inbox.read(_BOX)
        for note in notes:
            call = self._calls.get(note.content.get("key", ""))
            if call is not None and call.expires is not None:
                self.take(call.key)
                task = asyncio.create_task(self._hand_over(inbox, note, call))
                self._handed.add(task)
                task.add_done_callback(self._handed.discard)
        # A process that was killed leaves its notes behind.
        oldest_ns = time.time_ns() - _STALE_NS
        if stale := [note.key for note in notes if note.sent_ns < oldest_ns]:
            await inbox.forget(_BOX, stale)

    async def _hand_over(self, inbox: StoreInbox, note: ControlMessage, call: SuspendedCall) -> None:
        """Continue a call with another process's answer, and send what follows to that process.

        That is the next question, after which the call is suspended again, or its result or its error, after which it
        is ended. Signs of life are sent meanwhile. If the other process has removed its note, the call is ended. Errors
        of the Store are raised; they end the call, unless it is suspended again.
        """
        assert call.continue_for is not None, "the task that left it has set it"
        work = asyncio.ensure_future(call.continue_for(note.content["question"], note.content["answer"]))
        found: dict[str, Any] = {}
        try:
            # A sign of life is sent well before the other process would give up.
            while not (await asyncio.wait({work}, timeout=_SILENT_S / 3))[0]:
                if note.key not in {each.key for each in await inbox.read(_BOX)}:
                    return  # the run of the other process was stopped
                await inbox.add(_BOX, new_note("configure", {"to": note.key}))
            found = work.result()
            await inbox.add(_BOX, new_note("configure", {"to": note.key, **found}))
            await inbox.forget(_BOX, [note.key])
        finally:
            work.cancel()
            if "question" in found:
                self.leave(call)
            else:
                self.end(call)

    def _expire(self, call: SuspendedCall) -> None:
        """Cancel and remove a call whose question had no answer in time, with a warning."""
        logger.warning("A call was cancelled, because its question had no answer within %g s", self._keep_s)
        self.end(call)


HANDOVER = "mcp"
"""Kind of the `StoreInbox` through which processes pass on answers to calls."""
_BOX = "calls"
"""Name of the inbox in the Store for all of these notes."""
_SILENT_S = 3.0
"""Seconds without a sign of life after which the process of a call counts as ended."""
_STALE_NS = 86_400 * 10**9
"""Nanoseconds after which a note is removed."""


async def answer_elsewhere(inbox: StoreInbox, key: str, question: str, answer: Any) -> dict[str, Any]:
    """Send an answer to the process that holds a call, and wait for what follows; cancelling this cancels the call.

    Args:
        inbox: The Store's inbox of kind `HANDOVER`.
        key: Idempotency key of the call.
        question: Digest of the question.
        answer: The user's answer.

    Returns:
        `{"question": …}` with the value of the call's next interrupt, `{"result": …}`, or `{"error": …, "lost": …}`,
            where `lost` is whether the server will not answer. Empty if no process holds the call.
    """
    note = new_note("configure", {"key": key, "question": question, "answer": answer})
    await inbox.add(_BOX, note)
    until = time.monotonic() + _SILENT_S
    try:
        while time.monotonic() < until:
            for reply in [each for each in await inbox.read(_BOX) if each.content.get("to") == note.key]:
                await inbox.forget(_BOX, [reply.key])
                # A note with nothing but `to` is a sign of life.
                if len(reply.content) > 1:
                    found: dict[str, Any] = reply.content
                    return found
                until = time.monotonic() + _SILENT_S
            await asyncio.sleep(POLL_S)
    finally:
        await inbox.forget(_BOX, [note.key])
    return {}


UNSUPPORTED = types.ErrorData(code=types.INVALID_REQUEST, message="Elicitation not supported")
"""The reply that the SDK sends for a client without an elicitation callback."""
NO_SAMPLING = types.ErrorData(code=types.INVALID_REQUEST, message="Sampling not supported")
"""The reply that the SDK sends for a client without a sampling callback."""
VOID = types.ErrorData(code=types.INVALID_REQUEST, message="The call of this question has ended.")
"""The reply to a question whose call has ended."""


@dataclass(slots=True, eq=False)
class AskingCall:
    """State of a running call that is needed to assign the server's questions to calls."""

    asker: Asker | None = None
    """Asks the user; None if no user can be asked."""
    session_id: str = ""
    """Id of the agent's session; empty if there is none."""
    questions: int = 0
    """Number of open questions that are assigned to the call."""
    answered: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Resolved when the call ends, with whether the server has answered it."""


class Questions:
    """Assigns the questions of one session with a server to its running calls.

    The protocol does not name the call of a question. It is known if the question arrives in the response to a call,
    and guessed otherwise.
    """

    def __init__(self) -> None:
        self._running: list[AskingCall] = []
        self._origins: dict[types.RequestId, AskingCall] = {}
        self._unassigned: list[object] = []
        self._changed = asyncio.Event()

    def begin(self, call: AskingCall) -> None:
        """Add a call whose request is about to be sent."""
        self._running.append(call)

    def end(self, call: AskingCall, *, answered: bool) -> None:
        """Remove a call; its open questions become void.

        If the server has answered the call (`answered`), a question whose call was guessed is assigned to another one
        instead.
        """
        self._running.remove(call)
        if not call.answered.done():
            call.answered.set_result(answered)
        self._changed.set()

    def note_origin(self, question: types.RequestId, call: AskingCall) -> None:
        """Record that a request of the server arrived in the response to a call, so that it belongs to that call."""
        if call in self._running:
            self._origins[question] = call

    async def ask(
        self, question: types.RequestId, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Pass a question to the asker of its call, and return the answer; an error reply if the call is unknown or has
        ended.
        """
        reply = await self._ask(question, params)
        return reply if isinstance(reply, types.ElicitResult | types.ErrorData) else UNSUPPORTED

    async def sample(
        self, question: types.RequestId, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        """Pass a sampling request to the asker of its call, and return the reply; an error reply if the call is unknown
        or has ended.
        """
        reply = await self._ask(question, params)
        return reply if isinstance(reply, types.CreateMessageResult | types.ErrorData) else UNSUPPORTED

    async def _ask(self, question: types.RequestId, params: QuestionParams) -> ClientReply:
        """Return the reply of the asker of the call to which a question belongs.

        An error reply if the call cannot be decided, or has no asker. If a guessed call is answered by the server
        before the reply, the question is passed to another call; if the call ends otherwise, `VOID` is returned.

        Args:
            question: Id of the server's request.
            params: The question.
        """
        origin = self._origins.pop(question, None)
        while True:
            call = origin or await self._find()
            if call is None or call.asker is None:
                return UNSUPPORTED if not isinstance(params, types.CreateMessageRequestParams) else NO_SAMPLING
            call.questions += 1
            answer = asyncio.ensure_future(call.asker(params))
            outcomes: set[asyncio.Future[Any]] = {answer, call.answered}
            try:
                await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
            finally:
                call.questions -= 1
                self._changed.set()
                if not answer.done():
                    answer.cancel()
            if answer.done() and not answer.cancelled():
                return answer.result()
            if origin is not None or not call.answered.done() or not call.answered.result():
                return VOID
            # The call ended without the answer, so the question is another call's.

    async def _find(self) -> AskingCall | None:
        """Wait until it is decided to which running call a question belongs, and return the call.

        It is the only running call, or the only one without an open question. If each call without an open question has
        one that is not assigned, they are assigned in order. None if no call runs, if several run that all have
        questions, or, with a warning, if the calls without one are of several sessions or of none.
        """
        mark = object()
        self._unassigned.append(mark)
        try:
            while True:
                idle = [call for call in self._running if not call.questions]
                if not idle:
                    return self._running[0] if len(self._running) == 1 else None
                if len(idle) == 1:
                    return idle[0]
                # Now every idle call has a question. Within one session it does not matter to which call a question is
                # assigned.
                if len(idle) <= len(self._unassigned):
                    if len({call.session_id for call in idle}) > 1 or any(not call.session_id for call in idle):
                        logger.warning("A question was refused, because it may belong to calls of several sessions")
                        return None
                    return idle[min(self._unassigned.index(mark), len(idle) - 1)]
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._unassigned.remove(mark)
            self._changed.set()
