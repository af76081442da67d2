"""Reads and controls a caller's sessions from outside their runs, and implements the routes to them.

A *caller* is the owner of an API key; the thread of a session contains the caller's name.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from langgraph.types import Command, StateSnapshot
from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator
from starlette.responses import Response

from graph_agent.base._internal.text import to_json_safe
from graph_agent.base.errors import DamagedSessionError, InputError, NewerFormatError, SessionBusyError
from graph_agent.base.history.events import StoredEvent, read_events
from graph_agent.base.model_error_text import public_text, public_value
from graph_agent.interfaces.server import feeds
from graph_agent.interfaces.server import response_models as models
from graph_agent.interfaces.server.admission.body import BodyRoute
from graph_agent.interfaces.server.admission.gate import Caller
from graph_agent.interfaces.server.chat.handler import Runs
from graph_agent.interfaces.server.chat.run import RunEnded
from graph_agent.interfaces.server.chat.run_spec import RunSpec, client_interrupts
from graph_agent.interfaces.server.chat.schemas import SESSION_ID, VISIBLE, clean_body
from graph_agent.interfaces.server.host import Host
from graph_agent.interfaces.server.parameters import RequestServices, Sender
from graph_agent.interfaces.server.problems import BusySessionError, InvalidRequestError, ProblemError
from graph_agent.interfaces.server.session_filter import SessionFilter, session_filter
from graph_agent.interfaces.server.sse import comment, frame
from graph_agent.session.activity import running_check
from graph_agent.session.control import SessionControl
from graph_agent.session.history import EventReader, list_threads, summarize_session
from graph_agent.session.interrupts import checked_answers
from graph_agent.session.open_input import is_begun, is_feedback
from graph_agent.session.results import open_interrupts, run_result
from graph_agent.session.session import Session

_ERRORS = models.control_errors({404: "No such session", 409: "The session's state does not allow this"})
SessionId = Annotated[str, Path(pattern=SESSION_ID, description="The session.")]

router = APIRouter(tags=["Sessions"], responses=_ERRORS, route_class=BodyRoute)


class Sessions:
    """The sessions of one caller. Sessions of other callers cannot be reached.

    Each method that takes the id of a session raises `ProblemError` (`not_found`) if the caller has no such session.

    Args:
        runs: The runs of the server.
        caller: The caller, whose name is part of the sessions' threads.
    """

    def __init__(self, runs: Runs, caller: Caller) -> None:
        self._runs = runs
        self._host: Host = runs.host
        self._caller = caller

    @property
    def person(self) -> str:
        """The name under which decisions, ratings and titles of this caller are recorded."""
        return self._caller.person

    async def ids(self, limit: int | None, after: str | None) -> list[str]:
        """Return the ids of sessions, newest first.

        Args:
            limit: Maximum number of ids; None for all.
            after: Return only the sessions after this one in the order; None to begin with the newest. `ProblemError`
                is raised if it does not exist.
        """
        # The database lists threads, which have the caller's name.
        after_thread = self._caller.thread(after) if after is not None else None
        try:
            threads = await list_threads(
                self._host.saver, group=self._caller.thread(""), after=after_thread, limit=limit
            )
        except KeyError:
            raise ProblemError("not_found", f"There is no session {after!r}.", param="after") from None
        return [id_ for thread in threads if (id_ := self._caller.session(thread)) is not None]

    async def infos(self, limit: int, after: str | None) -> list[dict[str, Any]]:
        """Return the states of at most `limit` sessions, newest first, with the fields of `SessionInfo`.

        The list begins after the session `after`, or with the newest for None. Sessions that cannot be read, or are
        deleted meanwhile, are left out. Raises `ProblemError` (`not_found`) if `after` does not exist.
        """
        found: list[dict[str, Any]] = []
        for session_id in await self.ids(limit, after):
            # Another request may delete a session meanwhile.
            with suppress(ProblemError, NewerFormatError, DamagedSessionError):
                found.append(await self.info(session_id))
        return found

    async def summaries(
        self, limit: int, after: str | None, chosen: SessionFilter
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Return summaries of sessions, newest first, and the id after which the list continues; None at its end.

        At most `limit` sessions are read. Those that cannot be read, and those that the filter does not accept, are
        left out, so that fewer summaries may be returned although the list continues. If the list ends with exactly
        `limit` sessions, the id is returned, too, and the next page is empty.

        Args:
            limit: Maximum number of sessions to read.
            after: Read only the sessions after this one; None to begin with the newest. `ProblemError` is raised if it
                does not exist.
            chosen: The filter.
        """
        found = []
        read = await self.ids(limit, after)
        for session_id in read:
            with suppress(NewerFormatError, DamagedSessionError):
                if (each := await self._summary(session_id, with_totals=chosen.needs_totals)) is not None:
                    found.append({**each, "id": session_id, "title": public_text(each["title"])})
        return [each for each in found if chosen.accepts(each)], read[-1] if len(read) == limit else None

    async def _summary(self, session_id: str, *, with_totals: bool) -> dict[str, Any] | None:
        """Return the summary of a session with `cost`, the cost of its newest input (None without prices), and
        `with_totals` the totals of all its events.

        None if the session is not stored.
        """
        thread, saver = self._caller.thread(session_id), self._host.saver
        newest = await saver.aget_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
        if newest is None:
            return None
        usage = newest.checkpoint["channel_values"].get("usage") or {}
        summary = await summarize_session(saver, thread, newest, running_check(saver), self._host.store)
        totals = (await self._host.totals.read(self._host.kept, saver, newest)).as_json() if with_totals else {}
        return {**asdict(summary), "cost": usage.get("cost"), **totals}

    async def events(self, session_id: str, types: list[str], after: int) -> list[dict[str, Any]]:
        """Return events of a session as JSON objects, oldest first, also those of finished calls in a step that runs or
        waits.

        Args:
            session_id: The session. `ProblemError` (`not_found`) is raised if the caller has no such session.
            types: Types of events to return; empty for all but recorded model requests.
            after: Index of the newest event that the client has; -1 for all events.
        """
        found, _ = await self.events_to_follow(session_id, types, after)
        return found

    async def events_to_follow(self, session_id: str, types: list[str], after: int) -> tuple[list[dict[str, Any]], int]:
        """Return events of a session as JSON objects, oldest first, and the index after which to follow the session.

        The index is that of the newest event whose place in the history is final. Events after it belong to a parallel
        batch of calls that runs or waits; they are sent again when their index is final.

        Args:
            session_id: The session. `ProblemError` (`not_found`) is raised if the caller has no such session.
            types: Types of events to return; empty for all but recorded model requests.
            after: Index of the newest event that the client has; -1 for all events.
        """
        thread = self._caller.thread(session_id)
        reader = EventReader(self._host.kept, self._host.saver, thread)
        tail = await reader.read_tail(after=after, pending=True)
        if tail is None:
            raise _unknown(session_id)
        first, stored = tail
        found = [
            {**public_value(feeds.visible_event(event, types, self._caller.thread(""))), "session_id": session_id}
            for event in read_events(stored, thread, first)
            if feeds.is_selected(event, types)
        ]
        return found, first + len(stored) - len(reader.pending) - 1

    async def follow(
        self, session_id: str, types: list[str], after: int, keepalive_s: float, *, live: bool = False
    ) -> AsyncGenerator[str, None]:
        """Stream the past and future events of a session as server-sent events, until the server stops or the session
        is deleted.

        The first events of an input are sent before its first model call has ended. They are sent again if they are
        stored with other values or at another index. The last event is `end`, with the reason (`server_stopping` or
        `deleted`) and the index after which to continue (`after`).

        Args:
            session_id: The session. `ProblemError` (`not_found`) is raised if the caller has no such session.
            types: Types of events to send; empty for all but recorded model requests.
            after: Index of the newest event that the client has; -1 for all.
            keepalive_s: Seconds without an event after which a comment is sent.
            live: Also send the output of runs in events of the type `live`, before the stored events that contain it,
                and the ends of calls whose parallel batch still runs or waits.
        """
        await self._check(session_id)
        return self._followed(session_id, types, after, keepalive_s, live)

    async def _followed(
        self, session_id: str, types: list[str], after: int, keepalive_s: float, live: bool
    ) -> AsyncGenerator[str, None]:
        """Yield the stream of `follow` as frames of server-sent events.

        Each stored event of the requested types is sent with its index as `seq`, and earlier if a run has emitted it
        but not stored it yet. With `live`, the output of runs and the ends of calls are sent before the events that
        contain them. A comment is sent after `keepalive_s` seconds without an event. The last event is `end`, with the
        reason and the newest index.
        """
        thread = self._caller.thread(session_id)
        silent_since = time.monotonic()
        order, held = feeds.EventOrder(after), list[feeds.LivePart]()

        def frames(events: Iterable[tuple[int, StoredEvent]]) -> Iterator[str]:
            """Yield the frames of those events that the client asked for, each with its index."""
            nonlocal silent_since
            for seq, event in events:
                if feeds.is_selected(event, types):
                    silent_since = time.monotonic()
                    sent = public_value(feeds.visible_event(event, types, self._caller.thread("")))
                    yield frame({**sent, "seq": seq, "session_id": session_id}, event["type"])

        async with AsyncExitStack() as stack:
            feed, follower = await stack.enter_async_context(self._host.feeds.following(thread))
            take_live = stack.enter_context(self._host.live.reading(thread, feed.wake)) if live else list
            ended: list[feeds.LivePart] = []
            while True:
                over, change = feed.ended, feed.change
                events = await feed.take(follower, order.after)
                new, left = take_live(), [*events]
                parts, held = [*held, *new], []
                while parts:
                    at = next((n for n, part in enumerate(parts) if part["type"] == feeds.EARLY), len(parts))
                    if at:
                        yield frame({"type": "live", "parts": parts[:at]}, "live")
                    if parts := parts[at:]:
                        before = max(0, parts[0]["seq"] - order.after - 1)
                        for each in frames(order.stored(left[:before])):
                            yield each
                        left = left[before:]
                        if order.next_index < parts[0]["seq"]:
                            parts, held = [], parts  # the feed lacks the end of the input before
                        else:
                            for each in frames(order.early(parts[0]["seq"], parts[0]["events"])):
                                yield each
                            parts = parts[1:]
                for each in frames(order.stored(left)):
                    yield each
                if feed.position == order.after and (is_begun(feed.pending) or is_feedback(feed.pending)):
                    for each in frames(order.early(order.after + 1, feed.pending)):
                        yield each
                # Their calls are in the events before.
                ends = [feeds.call_end(event) for event in feed.pending if live and event["type"] in feeds.RESULTS]
                if new := [each for each in ends if each not in ended]:
                    yield frame({"type": "live", "parts": new}, "live")
                ended = ends
                if over is not None:
                    break
                if time.monotonic() - silent_since >= keepalive_s:
                    silent_since = time.monotonic()
                    yield comment("nothing new")
                if not events and not new:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(max(0.01, keepalive_s - (time.monotonic() - silent_since))):
                            await change.wait()
        yield frame({"type": "end", "reason": over, "after": order.after}, "end")

    async def info(self, session_id: str) -> dict[str, Any]:
        """Return the state of a session as JSON, with the fields of `SessionInfo`: status, answer, what it waits for,
        whether it runs.

        Raises `ProblemError` (`not_found`) if the caller has no such session.
        """
        return await self._info(session_id, await self._state(session_id))

    async def _info(self, session_id: str, state: StateSnapshot) -> dict[str, Any]:
        """Return the state of a session, with the fields of `SessionInfo`, from a snapshot of its newest checkpoint.

        Its `activity` is `idle` if nothing can be resumed; otherwise `running` in whichever process, `waiting` for an
        answer, or `interrupted`.
        """
        result = run_result(state)
        activity = "idle"
        if state.tasks:
            is_running = await Session(self._host.kept, self._caller.thread(session_id)).is_running()
            activity = "running" if is_running else "waiting" if result.waiting else "interrupted"
        return {
            "id": session_id,
            "status": result.status.value,
            "stop_reason": result.stop_reason,
            "answer": public_text(result.answer),
            "events": len(result.events),
            "pending": to_json_safe(result.pending),
            "waiting": result.waiting,
            "activity": activity,
            "interrupts": [{"id": each.id, "value": to_json_safe(each.value)} for each in result.interrupts],
        }

    async def session(self, session_id: str) -> Session:
        """Return a session object, by which the session can be steered or aborted, or an input queued.

        Raises `ProblemError` (`not_found`) if the caller has no such session.
        """
        await self._check(session_id)
        return Session(self._host.kept, self._caller.thread(session_id))

    async def resume(
        self,
        session_id: str,
        answer: Any,
        *,
        credentials: Mapping[str, SecretStr] | None = None,
        resources: ExitStack | None = None,
    ) -> dict[str, Any]:
        """Resume a session, wait until its run has ended or asks the next question, and return the session's state.

        Args:
            session_id: The session.
            answer: The answer to the open interrupt, or interrupt id → answer; None after a stop or a crash.
            credentials: Secrets of this request for the tools of the run.
            resources: Resources of the request, which are released when the run has ended, also if the client has left.

        Raises:
            ProblemError: There is no such session (`not_found`); it runs, has nothing to resume, waits for an answer
                and there is none, or the answer does not fit (`conflict`); or the run fails.
        """
        state = await self._state(session_id)
        # `next` would not do: it is empty if the process died between a superstep's last write and its checkpoint.
        if not state.tasks:
            raise ProblemError(
                "conflict", f"The session {session_id!r} has nothing to resume: its last input was answered."
            )
        interrupts = open_interrupts(state)
        thread = self._caller.thread(session_id)
        if answer is None and interrupts:
            raise ProblemError("conflict", f"The session {session_id!r} waits for an answer; send it as 'answer'.")
        try:
            graph_input: Any = None
            if answer is not None:
                # The name is never the request's own, because the history records it.
                checked = await checked_answers(answer, self._host.kept, state, self._caller.person)
                graph_input = Command(resume=checked)
        except InputError as error:
            raise ProblemError("conflict", str(error), param="answer") from None
        names = {each.value["name"] for each in client_interrupts(interrupts)}
        functions = [{"name": name, "parameters": {"type": "object", "properties": {}}} for name in sorted(names)]
        context: dict[str, Any] = {"credentials": dict(credentials)} if credentials else {}
        if functions:
            context["client_tools"] = [{"type": "function", "function": function} for function in functions]
        spec = RunSpec(self._host.kept, thread, graph_input, context, session_id)
        try:
            async with self._runs.run(spec, streams=False, resources=resources) as run:
                while not isinstance(await run.part(), RunEnded):
                    pass
        except BusySessionError as busy:
            raise ProblemError("conflict", busy.message) from None
        assert run.input.state is not None, "a run that reaches its end reads its state"
        return await self._info(session_id, run.input.state)

    async def delete(self, session_id: str) -> None:
        """Delete a session with those of its background tasks, and wake their followers.

        Raises `ProblemError` (`conflict`), and deletes none, if one of them is running.
        """
        # Imported here: it loads the code of exports.
        from graph_agent.session.importing import lock_for_removal

        await self._check(session_id)
        thread = self._caller.thread(session_id)
        try:
            async with lock_for_removal(self._host.saver, thread) as removed:
                for each in removed:
                    await SessionControl(self._host.kept, each).delete()
        except SessionBusyError as busy:
            running = "" if repr(thread) in str(busy) else " has a background task that"
            raise ProblemError("conflict", f"The session {session_id!r}{running} is running; abort it first.") from None
        for each in removed:
            self._host.totals.forget(each)
            self._host.notifier.notify(each)

    async def _check(self, session_id: str) -> None:
        """Raise `ProblemError` if the caller has no such session. Reads only the newest checkpoint."""
        if await self._host.saver.aget_tuple({"configurable": {"thread_id": self._caller.thread(session_id)}}) is None:
            raise _unknown(session_id)

    async def _state(self, session_id: str) -> Any:
        """Return a snapshot of a session's newest checkpoint; raise `ProblemError` (`not_found`) if it has neither
        values nor a next node, because the caller has no such session.
        """
        thread = self._caller.thread(session_id)
        state = await self._host.kept.aget_state({"configurable": {"thread_id": thread}})
        if not state.values and not state.next:
            raise _unknown(session_id)
        return state


def _unknown(session_id: str) -> ProblemError:
    """Return the error (`not_found`) for a session that the caller does not have."""
    return ProblemError("not_found", f"There is no session {session_id!r}.")


class SessionBody(BaseModel):
    """The body of a request on a session: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    _clean = model_validator(mode="before")(clean_body)


class SessionMessage(SessionBody):
    """A user message for a session."""

    text: str = Field(min_length=1, pattern=VISIBLE)


class Answer(SessionBody):
    """An answer to a session's open interrupts."""

    answer: Any = Field(None, description="The answer, or interrupt id → answer; absent after a stop or a crash.")


def sessions_of_caller(sender: Sender, server: RequestServices) -> Sessions:
    """Return the sessions of the request's caller, as a dependency of routes."""
    return Sessions(server.chat.runs, sender)


CallerSessions = Annotated[Sessions, Depends(sessions_of_caller)]


@router.get("/memory/sessions")
async def list_sessions(
    caller_sessions: CallerSessions,
    limit: Annotated[
        int | None, Query(ge=1, le=10_000, description="Maximum number of sessions; all by default.")
    ] = None,
    after: Annotated[str | None, Query(description="List only the sessions after this one, which must exist.")] = None,
) -> models.SessionIds:
    """List the ids of the caller's sessions, newest first."""
    return models.SessionIds(sessions=await caller_sessions.ids(limit, after))


@router.get(
    "/memory/sessions/{session_id}/events",
    response_model=models.EventList,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def get_events(
    session_id: SessionId,
    caller_sessions: CallerSessions,
    sender: Sender,
    server: RequestServices,
    type: Annotated[list[str] | None, Query(description="Types of events; all by default.")] = None,
    after: Annotated[int, Query(ge=-1, le=2**31, description="Only events with a higher seq.")] = -1,
    follow: Annotated[
        bool,
        Query(
            description="Stream new events as SSE after the stored ones, up to an `end` event; the message of an input "
            "comes before its first model call has ended."
        ),
    ] = False,
    live: Annotated[
        bool, Query(description="With `follow`: stream the output of runs before it is stored, as `live` events.")
    ] = False,
    missing_ok: Annotated[
        bool, Query(description="Without `follow`: an empty list in place of 404 if there is no such session yet.")
    ] = False,
) -> Any:
    """Return a session's history, oldest event first, as a list or, with `follow`, as a stream."""
    if not follow:
        try:
            events, position = await caller_sessions.events_to_follow(session_id, type or [], after)
        except ProblemError as problem:
            if not missing_ok or problem.kind != "not_found":
                raise
            return models.EventList(events=[], after=-1)
        return models.EventList(events=events, after=position)
    keepalive_s = server.chat.runs.host.settings.keepalive_s
    frames = await caller_sessions.follow(session_id, type or [], after, keepalive_s, live=live)
    return server.followed(sender, frames)


@router.get("/memory/summaries")
async def list_summaries(
    caller_sessions: CallerSessions,
    limit: Annotated[int, Query(ge=1, le=200, description="Maximum number of sessions to read.")] = 50,
    after: Annotated[str | None, Query(description="Read only the sessions after this one, which must exist.")] = None,
    *,
    chosen: Annotated[SessionFilter, Depends(session_filter)],
) -> models.SessionSummaries:
    """List the caller's sessions with title, age and activity, newest first. Two checkpoints of each are read.

    With a filter, fewer than `limit` may be returned although the list continues; `next` is the `after` of the next
    request.
    """
    found, next_after = await caller_sessions.summaries(limit, after, chosen)
    return models.SessionSummaries(sessions=found, next=next_after, person=caller_sessions.person)


@router.get("/sessions")
async def list_session_states(
    caller_sessions: CallerSessions,
    limit: Annotated[int, Query(ge=1, le=100, description="Maximum number of sessions.")] = 20,
    after: Annotated[str | None, Query(description="List only the sessions after this one, which must exist.")] = None,
) -> models.SessionList:
    """List the caller's sessions with their states, newest first.

    `waiting` is set for sessions that wait for an answer. Sessions that cannot be read are left out.
    """
    return models.SessionList(
        sessions=[models.SessionInfo(**info) for info in await caller_sessions.infos(limit, after)]
    )


@router.get("/sessions/{session_id}")
async def get_session(session_id: SessionId, caller_sessions: CallerSessions) -> models.SessionInfo:
    """Return a session's state: its status, its newest answer, its open questions, and whether it runs."""
    return models.SessionInfo(**await caller_sessions.info(session_id))


@router.delete("/sessions/{session_id}", status_code=204)
async def delete_session(session_id: SessionId, caller_sessions: CallerSessions) -> Response:
    """Delete a session with those of its background tasks.

    The status is 409 while one of them runs, and nothing is deleted.
    """
    await caller_sessions.delete(session_id)
    return Response(status_code=204)


@router.post("/sessions/{session_id}/steer", status_code=202)
async def steer_session(
    session_id: SessionId, body: SessionMessage, caller_sessions: CallerSessions
) -> models.Accepted:
    """Send a message to a session, which the model reads before its next plan; if the session is idle, with the next
    input.
    """
    await (await caller_sessions.session(session_id)).steer(body.text)
    return models.Accepted(accepted=True)


@router.post("/sessions/{session_id}/follow_up", status_code=202)
async def follow_up_session(
    session_id: SessionId,
    body: SessionMessage,
    caller_sessions: CallerSessions,
    request: Request,
    sender: Sender,
    server: RequestServices,
) -> models.Accepted:
    """Queue the next input of a session, which runs after the current answer. Its answer is in the events.

    Credentials in headers are refused, because queued messages are stored.
    """
    if brought := server.chat.runs.host.credentials_of(request):
        raise InvalidRequestError(
            f"A follow-up is stored until its turn comes, and credentials never are ({', '.join(sorted(brought))}). "
            "Send it without their headers, or as a request of its own when the session is idle."
        )
    # Counted as an input against the rate only: its run follows the current one of the session, so that the number of
    # concurrent runs does not grow.
    server.chat.limits.count(sender.name)
    await (await caller_sessions.session(session_id)).follow_up(body.text)
    return models.Accepted(accepted=True)


@router.post("/sessions/{session_id}/abort", status_code=202)
async def abort_session(session_id: SessionId, caller_sessions: CallerSessions) -> models.Accepted:
    """Abort a session's current run, or drop the calls that wait for an answer.

    `accepted` is false if there was nothing to stop.
    """
    return models.Accepted(accepted=await (await caller_sessions.session(session_id)).abort())


@router.post("/sessions/{session_id}/resume")
async def resume_session(
    session_id: SessionId,
    caller_sessions: CallerSessions,
    sender: Sender,
    server: RequestServices,
    request: Request,
    body: Answer | None = None,
) -> models.SessionInfo:
    """Resume a session, with an answer to its open interrupts or after a stop or a crash, and wait for the end of the
    run.
    """
    with ExitStack() as resources:
        resources.enter_context(server.chat.limits.slot(sender.name))
        credentials = server.chat.runs.host.credentials_of(request)
        answer = body.answer if body else None
        return models.SessionInfo(
            **await caller_sessions.resume(session_id, answer, credentials=credentials, resources=resources)
        )
