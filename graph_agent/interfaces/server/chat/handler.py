"""Handles one chat request, streamed or not, in either API's format, and manages the active runs of the process.

A *frame* is the text of one server-sent event. A *follow-up* is an input that was queued in a session to run after the
current answer. An *attempt* is one of several equal requests, by which a client repeats a request without a key.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, cast

import anyio
from starlette.requests import Request
from starlette.responses import Response

from graph_agent.base._internal.closing_stream import BETWEEN_PIECES_S
from graph_agent.base._internal.failure_log import log_failure
from graph_agent.base.history.events import StoredEvent
from graph_agent.interfaces.server.admission.gate import Caller, RequestLimits
from graph_agent.interfaces.server.chat.attempts import Attempt, attempt_of, before_failure
from graph_agent.interfaces.server.chat.outcomes import ChatOutcome
from graph_agent.interfaces.server.chat.run import MessageBreak, Part, RunEnded, ServerRun, progress_fields
from graph_agent.interfaces.server.chat.run_spec import RunSpec, resolve_once
from graph_agent.interfaces.server.chat.schemas import ChatRequest
from graph_agent.interfaces.server.host import Host
from graph_agent.interfaces.server.http_request import WholeAnswer, unless_disconnected
from graph_agent.interfaces.server.metrics import Metrics
from graph_agent.interfaces.server.problems import ProblemError, stopping
from graph_agent.interfaces.server.sse import EventStream, comment, progress_comment
from graph_agent.session.results import DelegatePart, EventAdded, Progress, Reasoning, StateValues, Token

logger = logging.getLogger("graph_agent.server.chat.handler")

_PIECES_A_SECOND = 500
"""Maximum pieces of streamed answers that a process sends in a second, for all runs together."""
_LONGEST_BETWEEN_PIECES_S = 0.1

_HEADERS_WITHIN_S = 5.0
"""Seconds that a stream's headers wait for the first part, so that an immediate failure can have its own status."""
REPLAYED = {"idempotent-replayed": "true"}
"""Header of an answer that was stored by an earlier request with the same idempotency key."""

STATUS_HEADER = "x-run-status"
"""Name of the header that marks the answer of a run that failed after a side effect; its value is `FAILED`."""
AnswerPart: TypeAlias = Token | MessageBreak | Reasoning | EventAdded
"""A part of a run's output that every API sends in its own form."""
Keep: TypeAlias = Callable[[ServerRun], Awaitable[None]]
"""Stores a complete answer; called with its run."""


def between_pieces_s(runs: int) -> float:
    """Return the minimum seconds between two pieces of one streamed answer, for a number of active runs.

    Sending a piece costs more CPU time than its tokens, so under load all runs of a process share a rate of pieces.
    """
    return max(BETWEEN_PIECES_S, min(runs / _PIECES_A_SECOND, _LONGEST_BETWEEN_PIECES_S))


class Runs:
    """The active runs of this process, and other components that are drained and closed together with them.

    Args:
        host: The open agent.
        metrics: Counts the runs.
    """

    def __init__(self, host: Host, metrics: Metrics) -> None:
        self.host = host
        self.metrics = metrics
        self._active: set[ServerRun] = set()
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._drainers: list[Callable[[], None]] = []
        self._closing: set[asyncio.Future[None]] = set()
        self._following: set[asyncio.Task[None]] = set()
        self.draining = False
        """Whether the server is stopping."""

    @contextlib.asynccontextmanager
    async def run(
        self,
        spec: RunSpec,
        *,
        streams: bool,
        resources: contextlib.ExitStack | None = None,
        starts_follow_ups: bool = True,
    ) -> AsyncIterator[ServerRun]:
        """Start a run, and yield it. If the context is left before the run has ended, the run is stopped.

        A run with an idempotency key continues to its end instead, in a task of its own, because the caller may repeat
        the request to get the answer. Raises `ProblemError`, and closes `resources`, while the server is stopping.

        Args:
            spec: Graph, thread, input and context of the run.
            streams: Whether the client receives text as it is produced.
            resources: Resources of the request, such as its slot. They are taken over, and closed when the run has
                ended or earlier by `ServerRun.release`.
            starts_follow_ups: Whether the follow-ups that are queued in the run's session run in the background after
                it.
        """
        owned = resources.pop_all() if resources is not None else contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            stack.callback(owned.close)
            if self.draining:
                raise stopping()
            run = ServerRun(
                self.host,
                spec,
                self.metrics,
                streams=streams,
                between_pieces_s=lambda: between_pieces_s(len(self._active)),
                on_end=self._start_follow_ups if starts_follow_ups and spec.session_id is not None else None,
            )
            run.release = owned.close
            self._active.add(run)
            try:
                yield run
            finally:
                if spec.scope.mark is not None and not spec.is_attempt and not run.ended:
                    stack.pop_all()  # the task closes the resources
                    run.detached = asyncio.create_task(self._finish(run), name="a run without its client")
                    self._following.add(run.detached)
                    run.detached.add_done_callback(self._following.discard)
                else:
                    self._active.discard(run)
                    # Shielded: a cancelled scope of anyio cancels each wait within it, and the database closes after.
                    with anyio.CancelScope(shield=True):
                        await run.close()

    async def _finish(self, run: ServerRun) -> None:
        """Drop the output of a run whose client has left, wait for its end, and release its resources.

        Then the run is no longer active; its follow-ups are awaited, too.
        """
        try:
            await run.finish()
        finally:
            self._active.discard(run)
            run.release()
        if run.following is not None:
            await asyncio.wait([run.following])

    def _start_follow_ups(self, run: ServerRun) -> None:
        """Start a task that runs the follow-ups of the run's session, i.e. its queued inputs; it becomes
        `run.following`.
        """
        run.following = asyncio.create_task(self._run_follow_ups(run), name="follow-ups")
        self._following.add(run.following)
        run.following.add_done_callback(self._following.discard)

    async def _run_follow_ups(self, run: ServerRun) -> None:
        """Run the follow-ups that are queued in a session one after the other; their answers are stored in the history.

        After an aborted run, the rest stays queued. A `ProblemError` ends this silently, any other error is logged.
        """
        try:
            while not run.input.aborted and (note := await run.driver.next_after(run.input)) is not None:
                check = functools.partial(run.driver.control.check_next, note)
                spec = run.spec.for_follow_up(note, check)
                async with self.run(spec, streams=False, starts_follow_ups=False) as run:
                    while not isinstance(await run.part(), RunEnded):
                        pass
        except ProblemError:
            # Already logged; or the server stops; or another run holds the session and takes the follow-up.
            return
        except Exception as error:  # noqa: BLE001 - a background task has no caller to raise to
            log_failure(logger, "Running a follow-up", error)

    def drain(self) -> None:
        """Refuse new runs, end the streams of session events, and let the active runs and the registered components
        stop at their next superstep boundary.
        """
        self.draining = True
        # Streams of events end first, because they would keep the server waiting.
        self.host.notifier.stop()
        for run in self._active:
            run.drain()
        for drain in self._drainers:
            drain()

    def cancel(self) -> None:
        """Cancel every run, and begin to close the registered components. Does not wait for them."""
        for run in list(self._active):
            run.cancel()
        for close in self._closers:
            self._closing.add(asyncio.ensure_future(close()))

    async def aclose(self) -> None:
        """Refuse new runs, cancel the active ones, and wait for the tasks of follow-ups and of runs without a client.

        If the server is draining, these tasks first get `drain_s` seconds to finish.
        """
        if self.draining and self._following:
            await asyncio.wait(self._following, timeout=self.host.settings.drain_s)
        self.draining = True
        for run in list(self._active):
            run.cancel()
        if self._following:
            await asyncio.wait(self._following)

    def register_closer(
        self, close: Callable[[], Awaitable[None]], *, drain: Callable[[], None]
    ) -> Callable[[], Awaitable[None]]:
        """Register a component that is drained and closed together with the runs.

        Args:
            close: Closes the component.
            drain: Makes the component's work stop at the next superstep boundary. It may be called from any thread.

        Returns:
            A function that closes the component at the first call, and waits for that at each call.
        """
        closed: list[asyncio.Future[None]] = []

        async def once() -> None:
            """Close the component at the first call, and wait until it is closed."""
            if not closed:
                closed.append(asyncio.ensure_future(close()))
            await closed[0]

        self._closers.append(once)
        self._drainers.append(drain)
        return once


def status_headers(outcome: ChatOutcome) -> dict[str, str]:
    """Return the header `x-run-status` for the answer of a run that failed; empty for any other answer."""
    return {STATUS_HEADER: outcome.status} if outcome.problem is not None else {}


def status_fields(outcome: ChatOutcome) -> dict[str, str]:
    """Return the field `run_status` for the answer of a run that failed; empty for any other answer."""
    return {"run_status": outcome.status} if outcome.problem is not None else {}


def refusal_of(run: ServerRun, outcome: ChatOutcome) -> ProblemError | None:
    """Return the error with which a run that has ended must be answered; None if its answer is a message.

    After a side effect, a failure is answered with a message, because a client would repeat the request, and so the
    side effect, after an error. It is an error, with the text so far, only if the problem may pass and an equal request
    continues this run.
    """
    if outcome.problem is None or not outcome.has_written:
        return outcome.problem
    if run.spec.is_attempt and outcome.problem.retry_after_s is not None:
        return outcome.problem.after_write(outcome.text)
    return None


class ChatDialect(Protocol):
    """The response format of one API. One object formats one answer, either as frames of a stream or as a body.

    The methods are called in the order of the answer. Those with a default may be inherited.
    """

    def resume(self, token: str) -> None:
        """Name the answer after the request whose token this is, which began the input that the current request
        resumes.

        Called before the first frame. Does nothing by default, for APIs whose ids do not depend on the request.
        """
        return

    def start_frames(self) -> Iterable[str]:
        """Yield the frames that begin a stream."""
        ...

    def text_frames(self, text: str) -> Iterable[str]:
        """Yield the frames of a piece of the answer's text."""
        ...

    def break_frames(self) -> Iterable[str]:
        """Yield the frames between two messages of the answer; by default a blank line as text."""
        return self.text_frames("\n\n")

    def reasoning_frames(self, text: str) -> Iterable[str]:
        """Yield the frames of a piece of the model's reasoning; none by default."""
        return ()

    def rest_frames(self, outcome: ChatOutcome, rest: str) -> Iterable[str]:
        """Yield the frames of `rest`, the end of the text that was not streamed; it is not empty."""
        return self.text_frames(rest)

    def event_frames(self, event: StoredEvent) -> Iterable[str]:
        """Yield the frames of an event about the agent's own plans and calls; none by default."""
        return ()

    def progress_frames(self, progress: dict[str, Any]) -> Iterable[str]:
        """Yield the frames that report progress in a field. Progress in comments has no part in the format."""
        ...

    def end_frames(self, outcome: ChatOutcome) -> Iterable[str]:
        """Yield the frames that end a stream, with the calls of the caller's own tools."""
        ...

    def error_frames(self, problem: ProblemError) -> Iterable[str]:
        """Yield the frames that end a stream with an error after it has begun."""
        ...

    def body(self, outcome: ChatOutcome, parts: Sequence[AnswerPart], progress: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the body of an answer that is not streamed.

        Args:
            outcome: The outcome of the run.
            parts: The parts of the answer before its rest, in order.
            progress: The progress of the run, if the client receives it as a field; otherwise empty.
        """
        ...


@dataclass(frozen=True, slots=True)
class ChatHandler:
    """Runs chat requests within the limits of their callers, and returns the responses."""

    runs: Runs
    """The active runs of the process."""
    limits: RequestLimits
    """Limits of requests per caller."""

    async def answer(
        self,
        http_request: Request,
        caller: Caller,
        request: ChatRequest,
        dialect: ChatDialect,
        keep: Keep | None = None,
        attempt: Attempt | None = None,
    ) -> Response:
        """Run one request, and return the response: the whole answer, or a stream that has begun.

        Args:
            http_request: The request.
            caller: The owner of the API key.
            request: The parsed request.
            dialect: Formats the answer.
            keep: Awaited when the answer is complete, before its end is sent; None for nothing.
            attempt: Makes equal requests for a stored response wait until this answer is sent; None for other requests.

        Raises:
            ProblemError: The request is refused, or the run fails before its stream begins: at the first frame, or
                after `_HEADERS_WITHIN_S`. A later failure is sent in the stream.
        """
        # A server that ends before it has sent the whole answer must still know the attempt.
        async with AsyncExitStack() as sent, AsyncExitStack() as stack:
            run = await stack.enter_async_context(self.started(http_request, caller, request, attempt, sent))
            if run.spec.answer_token:
                dialect.resume(run.spec.answer_token)
            headers = self.session_headers(run.spec.session_id)
            if not request.stream:
                answer = await self._answer_whole(http_request, run, request, dialect, headers, keep)
                # The attempt ends once the answer is sent, not once it is made.
                answer.close = sent.pop_all().aclose
                return answer
            first = await run.part(_HEADERS_WITHIN_S)
            if isinstance(first, RunEnded):
                if (problem := refusal_of(run, first.outcome)) is not None:
                    raise problem
                headers |= status_headers(first.outcome)
            headers |= REPLAYED if run.input.replayed else {}
            settings = self.runs.host.settings
            return EventStream(
                frames_of(first, run, request, dialect, settings.keepalive_s, keep),
                send_timeout_s=settings.send_timeout_s,
                close=stack.pop_all().aclose,
                after=sent.pop_all().aclose,
                headers=headers,
            )

    def session_headers(self, session_id: str | None) -> dict[str, str]:
        """Return the response header that names the session; empty without a session, or if the setting switches the
        header off.
        """
        name = self.runs.host.settings.session_header
        return {name: session_id} if name and session_id is not None else {}

    @asynccontextmanager
    async def started(
        self,
        http_request: Request,
        caller: Caller,
        request: ChatRequest,
        attempt: Attempt | None = None,
        sent: AsyncExitStack | None = None,
    ) -> AsyncIterator[ServerRun]:
        """Start the run of a request within the caller's limits, count it as active, and yield it.

        It is stopped if the context is left before its end.

        Args:
            http_request: The request.
            caller: The owner of the API key.
            request: The parsed request.
            attempt: Makes equal requests wait; None to begin one if a repetition of this request could repeat a side
                effect.
            sent: A stack that is closed once the answer is sent, and ends the attempt; None to end it with the context.

        Raises:
            ProblemError: The request is refused.
        """
        async with AsyncExitStack() as stack:
            if attempt is not None and sent is not None:
                sent.push_async_callback(attempt.aclose)
            resources = stack.enter_context(ExitStack())
            resources.enter_context(self.limits.slot(caller.name))
            stack.enter_context(self.runs.metrics.active_requests.track_inprogress())
            if self.runs.host.credential_headers:
                request = replace(request, credentials=self.runs.host.credentials_of(http_request))
            spec, own = await self._resolve(sent or stack, http_request, caller, request)
            attempt = attempt or own
            run = await stack.enter_async_context(self.runs.run(spec, streams=request.stream, resources=resources))
            try:
                yield run
            finally:
                if attempt is not None:
                    attempt.is_answered = run.is_answered
                    attempt.waits = run.input.state is not None and bool(run.input.state.tasks)

    async def _resolve(
        self, stack: AsyncExitStack, http_request: Request, caller: Caller, request: ChatRequest
    ) -> tuple[RunSpec, Attempt | None]:
        """Return the run of a request, and the attempt, which makes equal requests wait until `stack` is closed.

        An attempt is begun only if the agent has a tool with side effects, the request has no idempotency key, and it
        runs in no session, also because its history is not that of the session. Otherwise it is None. Raises
        `ProblemError` if the request is invalid, or if the server stops or the client leaves while this waits for an
        equal request.
        """
        host = self.runs.host
        if request.is_attempt:
            spec = await resolve_once(host, caller, request)
            spec.scope.continues_at = await before_failure(host, spec)
            return replace(spec, is_attempt=True), None
        if request.mark is not None or not host.may_write:
            return await resolve_once(host, caller, request), None
        if request.session_id is not None:
            spec = await resolve_once(host, caller, request)
            if spec.session_id is not None:
                return spec, None
            request = replace(request, session_id=None)  # answered from its own history
        content = (request.instructions, request.decisions)
        attempt, messages = await attempt_of(host, self.runs, caller, http_request, request.messages, content)
        stack.push_async_callback(attempt.aclose)
        return await attempt.resolve(replace(request, messages=messages)), attempt

    async def _answer_whole(
        self,
        http_request: Request,
        run: ServerRun,
        request: ChatRequest,
        dialect: ChatDialect,
        headers: dict[str, str],
        keep: Keep | None,
    ) -> WholeAnswer:
        """Wait for the end of a run, store its answer by `keep`, and return the whole answer.

        Raises `ProblemError` if the run fails without a message, or the client disconnects; the caller then stops the
        run. The run counts as answered unless it failed, or the client has left meanwhile.
        """
        answered = await unless_disconnected(http_request.receive, _to_end(run, progress=request.progress_as_field))
        if answered is None:
            # A response is required, although no client reads it.
            raise stopping()  # never delivered: the client has disconnected
        outcome, parts, progress = answered
        if (problem := refusal_of(run, outcome)) is not None:
            raise problem
        run.release()
        headers |= status_headers(outcome) | (REPLAYED if run.input.replayed else {})
        body = dialect.body(outcome, parts, progress)
        if keep is not None:
            await keep(run)
        run.is_answered = outcome.problem is None and not await http_request.is_disconnected()
        return WholeAnswer(json.dumps(body, ensure_ascii=False), media_type="application/json", headers=headers)


async def _to_end(run: ServerRun, *, progress: bool) -> tuple[ChatOutcome, list[AnswerPart], list[dict[str, Any]]]:
    """Read the parts of a run to its end; return the outcome, the parts of the answer, and the progress as JSON, if
    `progress` is set.

    States and the output of delegates are left out. Raises `ProblemError` if the run was refused, failed or was
    stopped.
    """
    parts: list[AnswerPart] = []
    reported: list[dict[str, Any]] = []
    while True:
        match await run.part():
            case RunEnded(outcome):
                return outcome, parts, reported
            case Progress() as update:
                reported += [progress_fields(update)] if progress else []
            case None | StateValues() | DelegatePart():
                pass
            case part:
                parts.append(part)


def make_frames(dialect: ChatDialect, outcome: ChatOutcome, parts: Iterable[AnswerPart]) -> None:
    """Make all frames of an answer but the last ones, and drop them: the dialect keeps what its body is built from."""
    for part in parts:
        "".join(_frames_of_part(part, dialect))
    if outcome.rest:
        "".join(dialect.rest_frames(outcome, outcome.rest))


def _frames_of_part(part: AnswerPart, dialect: ChatDialect) -> Iterable[str]:
    """Return the frames of one part of the answer: a piece of text, a break, reasoning or an event."""
    match part:
        case Token(piece):
            return dialect.text_frames(piece)
        case MessageBreak():
            return dialect.break_frames()
        case Reasoning(piece):
            return dialect.reasoning_frames(piece)
        case EventAdded(event):
            return dialect.event_frames(cast("StoredEvent", event))


async def frames_of(
    first: Part | None,
    run: ServerRun,
    request: ChatRequest,
    dialect: ChatDialect,
    keepalive_s: float,
    keep: Keep | None = None,
    *,
    finishes: bool = True,
) -> AsyncGenerator[str, None]:
    """Yield the frames of a run's answer, joined to one text for each part. The run's resources are released before the
    end is sent. A `ProblemError` of the run ends the stream with an error.

    Args:
        first: The first part, if it was read already; None if not.
        run: The run, whose parts are read until its end.
        request: The parsed request.
        dialect: Formats the answer.
        keepalive_s: Seconds without a part after which a comment is sent.
        keep: Awaited when the answer is complete, also if it ends with an error, before its end is sent; None for
            nothing.
        finishes: Whether a run that failed after a side effect ends as a regular message. After an error, the client
            would repeat the request.
    """
    start = "".join(dialect.start_frames())
    part = first
    try:
        while True:
            match part:
                case None | StateValues() | DelegatePart():
                    text = comment("still at work")
                case RunEnded(outcome):
                    if outcome.problem is not None and not (finishes and outcome.has_written):
                        raise outcome.problem
                    rest = dialect.rest_frames(outcome, outcome.rest) if outcome.rest else ()
                    text = "".join([*rest, *dialect.end_frames(outcome)])
                case Progress() if request.progress_as_field:
                    text = "".join(dialect.progress_frames(progress_fields(part)))
                case Progress():
                    text = progress_comment(progress_fields(part))
                case _:
                    text = "".join(_frames_of_part(part, dialect))
            # One write per part, with the start frames in the first: every write is a packet.
            if isinstance(part, RunEnded):
                # Before the answer is complete for its client, who may send the next request at once.
                run.release()
                if keep is not None:
                    await keep(run)
            if text := start + text:
                start = ""
                yield text
            if isinstance(part, RunEnded):
                run.is_answered = part.outcome.problem is None
                return
            part = await run.part(keepalive_s)
    except ProblemError as problem:
        run.release()
        text = start + "".join(dialect.error_frames(problem))
        if keep is not None:
            await keep(run)
        yield text
