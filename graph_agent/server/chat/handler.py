"""Handling of one chat request, streamed or not, in either API's format."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from graph_agent.server.admission.keys import Caller
from graph_agent.server.admission.limits import Limits
from graph_agent.server.chat.active_runs import Runs
from graph_agent.server.chat.idempotency import resolve_once
from graph_agent.server.chat.outcomes import ChatOutcome
from graph_agent.server.chat.request import ChatRequest
from graph_agent.server.chat.run import AnswerText, Part, ProgressUpdate, RunEnded, ServerRun
from graph_agent.server.errors.problems import ProblemError, stopping
from graph_agent.server.sse import EventStream, comment, progress_comment, wait_for_disconnect

_HEADERS_WITHIN_S = 5.0
"""Seconds to delay a stream's headers until the first part, so that an immediate failure gets its own status."""
SESSION_HEADER = "x-session-id"
REPLAYED = {"idempotent-replayed": "true"}
"""Header of an answer that was given to an earlier request with the same idempotency key."""


class ChatDialect(Protocol):
    """The response format of one API. One object formats one answer."""

    def start_frames(self) -> Iterable[str]:
        """Yield the first frames of a stream."""
        ...

    def text_frames(self, text: str) -> Iterable[str]:
        """Yield the frames of a piece of the answer."""
        ...

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
        """Return the body of an answer that is not streamed."""
        ...


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
        self, http_request: Request, caller: Caller, request: ChatRequest, dialect: ChatDialect
    ) -> Response:
        """Answer one request.

        Raises:
            ProblemError: If it cannot be answered, or its stream fails before the first frame.
        """
        async with AsyncExitStack() as stack:
            resources = stack.enter_context(ExitStack())
            resources.enter_context(self.limits.slot(caller.name))
            stack.enter_context(self.runs.metrics.active_requests.track_inprogress())
            request = replace(request, credentials=self.runs.host.credentials_of(http_request))
            spec = await resolve_once(self.runs.host, caller, request)
            run = await stack.enter_async_context(self.runs.run(spec, streams=request.stream, resources=resources))
            headers = {SESSION_HEADER: request.session_id} if request.session_id is not None else {}
            if not request.stream:
                return await self._answer_whole(http_request, run, request, dialect, headers)
            first = await run.part(_HEADERS_WITHIN_S)
            if isinstance(first, RunEnded) and first.outcome.problem is not None:
                raise first.outcome.problem
            headers |= REPLAYED if run.replayed else {}
            settings = self.runs.host.settings
            return EventStream(
                _frames(first, run, request, dialect, settings.keepalive_s),
                send_timeout_s=settings.send_timeout_s,
                close=stack.pop_all().aclose,
                headers=headers,
            )

    async def _answer_whole(
        self,
        http_request: Request,
        run: ServerRun,
        request: ChatRequest,
        dialect: ChatDialect,
        headers: dict[str, str],
    ) -> Response:
        answering = asyncio.create_task(_to_end(run))
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
        headers |= REPLAYED if run.replayed else {}
        body = dialect.body(outcome, progress if request.progress_as_field else [])
        return Response(json.dumps(body, ensure_ascii=False), media_type="application/json", headers=headers)


async def _to_end(run: ServerRun) -> tuple[ChatOutcome, list[dict[str, Any]]]:
    progress: list[dict[str, Any]] = []
    while True:
        match await run.part():
            case RunEnded(outcome):
                return outcome, progress
            case AnswerText() | None:
                pass
            case ProgressUpdate(update):
                progress.append(update)


async def _frames(
    first: Part | None, run: ServerRun, request: ChatRequest, dialect: ChatDialect, keepalive_s: float
) -> AsyncGenerator[str, None]:
    sent = ""
    start = "".join(dialect.start_frames())
    part = first
    try:
        while True:
            match part:
                case None:
                    text = comment("still at work")
                case AnswerText(piece):
                    sent += piece
                    text = "".join(dialect.text_frames(piece))
                case RunEnded(outcome):
                    if outcome.problem is not None:
                        raise outcome.problem
                    # Text that was not streamed: a structured answer, a question, text with calls.
                    rest = outcome.text[len(sent) :] if outcome.text.startswith(sent) else ""
                    if outcome.question and not rest:
                        rest = f"\n\n{outcome.question}"
                    text = "".join([*(dialect.text_frames(rest) if rest else ()), *dialect.end_frames(outcome)])
                case ProgressUpdate(progress) if request.progress_as_field:
                    text = "".join(dialect.progress_frames(progress))
                case ProgressUpdate(progress):
                    text = progress_comment(progress)
            # One write per part, with the start frames in the first: every write is a packet.
            if text := start + text:
                start = ""
                yield text
            if isinstance(part, RunEnded):
                return
            part = await run.part(keepalive_s)
    except ProblemError as problem:
        yield start + "".join(dialect.error_frames(problem))
