"""One chat request from beginning to end, in whichever API's words."""

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
from graph_agent.server.admission.problems import ProblemError, stopping
from graph_agent.server.chat.active_runs import Runs
from graph_agent.server.chat.outcomes import Outcome
from graph_agent.server.chat.request import Ask
from graph_agent.server.chat.run import Ended, Part, Running, Said
from graph_agent.server.chat.turns import turn_for
from graph_agent.server.sse import EventStream, comment, progress_comment, until_gone

_HEADERS_WITHIN_S = 5.0
"""Seconds that a stream's headers wait for its first part, so that a run that fails at once gets its own status."""
SESSION_HEADER = "x-session-id"


class Voice(Protocol):
    """How one API tells an answer. One object tells one answer."""

    def begins(self) -> Iterable[str]:
        """The first frames of a stream."""
        ...

    def says(self, text: str) -> Iterable[str]:
        """A piece of the answer."""
        ...

    def steps(self, progress: dict[str, Any]) -> Iterable[str]:
        """Progress as a field; the stream's comments are made elsewhere."""
        ...

    def ends(self, outcome: Outcome) -> Iterable[str]:
        """The calls and the last frames of a stream."""
        ...

    def breaks(self, problem: ProblemError) -> Iterable[str]:
        """The frames that end a stream that has begun and cannot go on."""
        ...

    def whole(self, outcome: Outcome, progress: list[dict[str, Any]]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        ...


@dataclass(frozen=True, slots=True)
class Chat:
    """Answers chat requests.

    Args:
        runs: Where runs are begun.
        limits: How many each caller may have.
    """

    runs: Runs
    limits: Limits

    async def answer(self, request: Request, caller: Caller, ask: Ask, voice: Voice) -> Response:
        """Answer one request.

        Raises:
            ProblemError: When it cannot be answered; also when a stream fails before it has begun.
        """
        async with AsyncExitStack() as stack:
            place = stack.enter_context(ExitStack())
            place.enter_context(self.limits.held(caller.name))
            stack.enter_context(self.runs.metrics.under_way.track_inprogress())
            ask = replace(ask, credentials=self.runs.host.credentials_of(request))
            turn = await turn_for(self.runs.host, caller, ask)
            running = await stack.enter_async_context(self.runs.run(turn, streams=ask.stream, place=place))
            headers = {SESSION_HEADER: ask.session_id} if ask.session_id is not None else {}
            if not ask.stream:
                return await self._whole(request, running, ask, voice, headers)
            first = await running.part(_HEADERS_WITHIN_S)
            if isinstance(first, Ended) and first.outcome.problem is not None:
                raise first.outcome.problem
            settings = self.runs.host.settings
            return EventStream(
                _frames(first, running, ask, voice, settings.keepalive_s),
                send_timeout_s=settings.send_timeout_s,
                close=stack.pop_all().aclose,
                headers=headers,
            )

    async def _whole(
        self, request: Request, running: Running, ask: Ask, voice: Voice, headers: dict[str, str]
    ) -> Response:
        answering = asyncio.create_task(_to_end(running))
        leaving = asyncio.create_task(until_gone(request.receive))
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise stopping()  # nobody reads it
            outcome, progress = answering.result()
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
        if outcome.problem is not None:
            raise outcome.problem
        body = voice.whole(outcome, progress if ask.progress_as_field else [])
        return Response(json.dumps(body, ensure_ascii=False), media_type="application/json", headers=headers)


async def _to_end(running: Running) -> tuple[Outcome, list[dict[str, Any]]]:
    progress: list[dict[str, Any]] = []
    while True:
        match await running.part():
            case Ended(outcome):
                return outcome, progress
            case Said() | None:
                pass
            case stepped:
                progress.append(stepped.progress)


async def _frames(
    first: Part | None, running: Running, ask: Ask, voice: Voice, keepalive_s: float
) -> AsyncGenerator[str, None]:
    said = ""
    begun = "".join(voice.begins())
    part = first
    try:
        while True:
            match part:
                case None:
                    told = comment("still at work")
                case Said(piece):
                    said += piece
                    told = "".join(voice.says(piece))
                case Ended(outcome):
                    if outcome.problem is not None:
                        raise outcome.problem
                    # What was not streamed is told now: an answer of a given shape, a question, words beside calls.
                    rest = outcome.text[len(said) :] if outcome.text.startswith(said) else ""
                    told = "".join([*(voice.says(rest) if rest else ()), *voice.ends(outcome)])
                case stepped if ask.progress_as_field:
                    told = "".join(voice.steps(stepped.progress))
                case stepped:
                    told = progress_comment(stepped.progress)
            # One write for each part, and the beginning goes with the first: every write is a packet.
            if told := begun + told:
                begun = ""
                yield told
            if isinstance(part, Ended):
                return
            part = await running.part(keepalive_s)
    except ProblemError as problem:
        yield begun + "".join(voice.breaks(problem))
