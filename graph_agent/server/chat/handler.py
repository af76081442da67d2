"""Handles one chat request, streamed or not, in either API's format."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from graph_agent.server.admission.gate import Caller
from graph_agent.server.admission.shared_limits import Limits
from graph_agent.server.chat.active_runs import Runs
from graph_agent.server.chat.outcomes import ChatOutcome
from graph_agent.server.chat.run import (
    AnswerText,
    CallEvents,
    MessageBreak,
    Part,
    ProgressUpdate,
    ReasoningPiece,
    RunEnded,
    ServerRun,
)
from graph_agent.server.chat.run_spec import resolve_once
from graph_agent.server.chat.schemas import ChatRequest
from graph_agent.server.problems import ProblemError, stopping
from graph_agent.server.sse import EventStream, comment, progress_comment, wait_for_disconnect
from graph_agent.state.events import StoredEvent

_HEADERS_WITHIN_S = 5.0
"""Seconds to delay a stream's headers until the first part, so that an immediate failure gets its own status."""
REPLAYED = {"idempotent-replayed": "true"}
"""Header of an answer that was given to an earlier request with the same idempotency key."""


class ChatDialect(Protocol):
    """The response format of one API. One object formats one answer; a format inherits the optional methods."""

    def start_frames(self) -> Iterable[str]:
        """Yield the first frames of a stream."""
        ...

    def text_frames(self, text: str) -> Iterable[str]:
        """Yield the frames of a piece of the answer."""
        ...

    def break_frames(self) -> Iterable[str]:
        """Yield the frames between two messages of the answer: a blank line, unless the format has several messages."""
        return self.text_frames("\n\n")

    def reasoning_frames(self, text: str) -> Iterable[str]:
        """Yield the frames of a piece of the model's reasoning; none by default."""
        return ()

    def rest_frames(self, outcome: ChatOutcome, rest: str) -> Iterable[str]:
        """Yield the frames of the end of the text, which no other part has; `rest` is not empty."""
        return self.text_frames(rest)

    def event_frames(self, event: StoredEvent) -> Iterable[str]:
        """Yield the frames of an event about the agent's own plans and calls; none by default."""
        return ()

    def progress_frames(self, progress: dict[str, Any]) -> Iterable[str]:
        """Yield progress as a field; progress in comments is formatted by `progress_comment`."""
        ...

    def end_frames(self, outcome: ChatOutcome) -> Iterable[str]:
        """Yield the calls and the last frames of a stream."""
        ...

    def error_frames(self, problem: ProblemError) -> Iterable[str]:
        """Yield the frames that end a started stream with an error."""
        ...

    def body(self, outcome: ChatOutcome, progress: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the body of an answer that is not streamed, from the text of the frames that were yielded before."""
        ...


Keep: TypeAlias = Callable[[ServerRun], Awaitable[None]]
"""Stores a complete answer; receives its run."""


@dataclass(frozen=True, slots=True)
class Chat:
    """Answers chat requests.

    Args:
        runs: The server's active runs.
        limits: Limits of requests per caller.
    """

    runs: Runs
    limits: Limits

    async def answer(
        self,
        http_request: Request,
        caller: Caller,
        request: ChatRequest,
        dialect: ChatDialect,
        keep: Keep | None = None,
    ) -> Response:
        """Answer one request.

        Args:
            dialect: The format of the answer.
            keep: Awaited with the run when the answer is complete, before its end is sent; None for nothing to keep.

        Raises:
            ProblemError: If it cannot be answered, or its stream fails before the first frame.
        """
        async with AsyncExitStack() as stack:
            run = await stack.enter_async_context(self.started(http_request, caller, request))
            headers = self.session_headers(run.spec.session_id)
            if not request.stream:
                return await self._answer_whole(http_request, run, request, dialect, headers, keep)
            first = await run.part(_HEADERS_WITHIN_S)
            if isinstance(first, RunEnded) and first.outcome.problem is not None:
                raise first.outcome.problem
            headers |= REPLAYED if run.input.replayed else {}
            settings = self.runs.host.settings
            return EventStream(
                frames_of(first, run, request, dialect, settings.keepalive_s, keep),
                send_timeout_s=settings.send_timeout_s,
                close=stack.pop_all().aclose,
                headers=headers,
            )

    def session_headers(self, session_id: str | None) -> dict[str, str]:
        """Return the header of an answer that names its session; none for an answer without a session."""
        name = self.runs.host.settings.session_header
        return {name: session_id} if name and session_id is not None else {}

    @asynccontextmanager
    async def started(self, http_request: Request, caller: Caller, request: ChatRequest) -> AsyncIterator[ServerRun]:
        """Start the run of a request within the caller's limits, and stop it if the context is left before its end.

        Raises:
            ProblemError: If it cannot start.
        """
        async with AsyncExitStack() as stack:
            resources = stack.enter_context(ExitStack())
            resources.enter_context(self.limits.slot(caller.name))
            stack.enter_context(self.runs.metrics.active_requests.track_inprogress())
            request = replace(request, credentials=self.runs.host.credentials_of(http_request))
            spec = await resolve_once(self.runs.host, caller, request)
            yield await stack.enter_async_context(self.runs.run(spec, streams=request.stream, resources=resources))

    async def _answer_whole(
        self,
        http_request: Request,
        run: ServerRun,
        request: ChatRequest,
        dialect: ChatDialect,
        headers: dict[str, str],
        keep: Keep | None,
    ) -> Response:
        answering = asyncio.create_task(_to_end(run, dialect))
        leaving = asyncio.create_task(wait_for_disconnect(http_request.receive))
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise stopping()  # never delivered: the client has disconnected
            outcome, progress = answering.result()
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
        if outcome.problem is not None:
            raise outcome.problem
        run.release()
        headers |= REPLAYED if run.input.replayed else {}
        body = dialect.body(outcome, progress if request.progress_as_field else [])
        if keep is not None:
            await keep(run)
        return Response(json.dumps(body, ensure_ascii=False), media_type="application/json", headers=headers)


async def _to_end(run: ServerRun, dialect: ChatDialect) -> tuple[ChatOutcome, list[dict[str, Any]]]:
    progress: list[dict[str, Any]] = []
    while True:
        match await run.part():
            case RunEnded(outcome):
                if outcome.rest:
                    "".join(dialect.rest_frames(outcome, outcome.rest))
                return outcome, progress
            case ProgressUpdate(update):
                progress.append(update)
            case None:
                pass
            case part:
                # The body is built from the frames, so that it has the text of a stream.
                "".join(_frames_of_part(part, dialect))


def _frames_of_part(
    part: AnswerText | MessageBreak | ReasoningPiece | CallEvents, dialect: ChatDialect
) -> Iterable[str]:
    match part:
        case AnswerText(piece):
            return dialect.text_frames(piece)
        case MessageBreak():
            return dialect.break_frames()
        case ReasoningPiece(piece):
            return dialect.reasoning_frames(piece)
        case CallEvents(events):
            return (each for event in events for each in dialect.event_frames(event))


async def frames_of(
    first: Part | None,
    run: ServerRun,
    request: ChatRequest,
    dialect: ChatDialect,
    keepalive_s: float,
    keep: Keep | None = None,
) -> AsyncGenerator[str, None]:
    """Stream the answer of a run as frames.

    Args:
        first: The run's first part, if it was read already.
        dialect: The format.
        keepalive_s: Seconds of silence after which a comment is sent.
        keep: Same as for `Chat.answer`; also awaited for an answer that ends with an error.
    """
    start = "".join(dialect.start_frames())
    part = first
    try:
        while True:
            match part:
                case None:
                    text = comment("still at work")
                case RunEnded(outcome):
                    if outcome.problem is not None:
                        raise outcome.problem
                    rest = dialect.rest_frames(outcome, outcome.rest) if outcome.rest else ()
                    text = "".join([*rest, *dialect.end_frames(outcome)])
                case ProgressUpdate(progress) if request.progress_as_field:
                    text = "".join(dialect.progress_frames(progress))
                case ProgressUpdate(progress):
                    text = progress_comment(progress)
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
                return
            part = await run.part(keepalive_s)
    except ProblemError as problem:
        run.release()
        text = start + "".join(dialect.error_frames(problem))
        if keep is not None:
            await keep(run)
        yield text
