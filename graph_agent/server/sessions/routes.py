"""Implements the routes to a caller's sessions: history, steering, follow-ups, abort, resume and deletion."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response

from graph_agent.server.admission.body import BodyRoute
from graph_agent.server.admission.gate import Caller, caller
from graph_agent.server.chat.schemas import SESSION_ID, clean_body
from graph_agent.server.parameters import Services, services
from graph_agent.server.problems import ProblemError
from graph_agent.server.response_models import (
    Accepted,
    EventList,
    ForkedSession,
    SessionIds,
    SessionInfo,
    SessionList,
    SessionSummaries,
    control_errors,
)
from graph_agent.server.sessions.sessions import Sessions
from graph_agent.server.sse import EventStream

_ERRORS = control_errors({404: "No such session", 409: "The session's state does not allow this"})
_SessionId = Annotated[str, Path(pattern=SESSION_ID, description="The session.")]

router = APIRouter(tags=["Sessions"], responses=_ERRORS, route_class=BodyRoute)


class SessionMessage(BaseModel):
    """A user message for a session."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    text: str = Field(min_length=1, pattern=r"\S")

    _clean = model_validator(mode="before")(clean_body)


class Answer(BaseModel):
    """An answer to a session's open interrupts."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    answer: Any = Field(None, description="The answer, or interrupt id → answer; absent after a stop or a crash.")

    _clean = model_validator(mode="before")(clean_body)


class ForkPoint(BaseModel):
    """The end of a step of a session."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    seq: int = Field(ge=0, le=2**31, description="Index of the last event of the step.")


def sessions(sender: Annotated[Caller, Depends(caller)], server: Annotated[Services, Depends(services)]) -> Sessions:
    """Return the sessions of the request's caller; a dependency of routes."""
    return Sessions(server.chat.runs, sender)


_CallerSessions = Annotated[Sessions, Depends(sessions)]


@router.get("/memory/sessions")
async def list_sessions(
    caller_sessions: _CallerSessions,
    limit: Annotated[
        int | None, Query(ge=1, le=10_000, description="Maximum number of sessions; all by default.")
    ] = None,
    after: Annotated[str | None, Query(description="List only the sessions after this one, which must exist.")] = None,
) -> SessionIds:
    """List the sessions, newest first."""
    return SessionIds(sessions=await caller_sessions.ids(limit, after))


@router.get(
    "/memory/sessions/{session_id}/events",
    response_model=EventList,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def get_events(
    session_id: _SessionId,
    caller_sessions: _CallerSessions,
    sender: Annotated[Caller, Depends(caller)],
    server: Annotated[Services, Depends(services)],
    type: Annotated[list[str] | None, Query(description="Types of events; all by default.")] = None,
    after: Annotated[int, Query(ge=-1, le=2**31, description="Only events with a higher seq.")] = -1,
    follow: Annotated[
        bool, Query(description="Stream new events as SSE after the stored ones, up to an `end` event.")
    ] = False,
    live: Annotated[
        bool, Query(description="With `follow`: stream the output of runs before it is stored, as `live` events.")
    ] = False,
) -> Any:
    """Return a session's history, oldest event first."""
    if not follow:
        return EventList(events=await caller_sessions.events(session_id, type or [], after))
    settings = server.chat.runs.host.settings
    async with AsyncExitStack() as stack:
        stack.enter_context(server.streams.slot(sender.name))
        return EventStream(
            await caller_sessions.follow(session_id, type or [], after, settings.keepalive_s, live=live),
            send_timeout_s=settings.send_timeout_s,
            close=stack.pop_all().aclose,
        )


@router.get("/memory/summaries")
async def list_summaries(
    caller_sessions: _CallerSessions,
    limit: Annotated[int, Query(ge=1, le=200, description="Maximum number of sessions to read.")] = 50,
    after: Annotated[str | None, Query(description="Read only the sessions after this one, which must exist.")] = None,
    search: Annotated[str, Query(description="Text of the session's id or title; all by default.")] = "",
) -> SessionSummaries:
    """List the sessions with title, age and activity, newest first; reads two checkpoints of each."""
    found, next_after = await caller_sessions.summaries(limit, after, search)
    return SessionSummaries(sessions=found, next=next_after)


@router.get("/sessions")
async def list_session_states(
    caller_sessions: _CallerSessions,
    limit: Annotated[int, Query(ge=1, le=100, description="Maximum number of sessions.")] = 20,
    after: Annotated[str | None, Query(description="List only the sessions after this one, which must exist.")] = None,
) -> SessionList:
    """List the sessions with their states, newest first; `waiting` is set for those that wait."""
    return SessionList(sessions=[SessionInfo(**info) for info in await caller_sessions.infos(limit, after)])


@router.get("/sessions/{session_id}")
async def get_session(session_id: _SessionId, caller_sessions: _CallerSessions) -> SessionInfo:
    """Return a session's state."""
    return SessionInfo(**await caller_sessions.info(session_id))


@router.delete("/sessions/{session_id}", status_code=204)
async def delete_session(session_id: _SessionId, caller_sessions: _CallerSessions) -> Response:
    """Delete a session."""
    await caller_sessions.delete(session_id)
    return Response(status_code=204)


@router.post("/sessions/{session_id}/steer", status_code=202)
async def steer_session(session_id: _SessionId, body: SessionMessage, caller_sessions: _CallerSessions) -> Accepted:
    """Steer a running session with a user message, which the model reads before the next plan."""
    await caller_sessions.steer(session_id, body.text)
    return Accepted(accepted=True)


@router.post("/sessions/{session_id}/follow_up", status_code=202)
async def follow_up_session(
    session_id: _SessionId,
    body: SessionMessage,
    caller_sessions: _CallerSessions,
    request: Request,
    sender: Annotated[Caller, Depends(caller)],
    server: Annotated[Services, Depends(services)],
) -> Accepted:
    """Queue a session's next input, to run after the current answer; its answer is in the events."""
    if brought := server.chat.runs.host.credentials_of(request):
        raise ProblemError(
            "invalid",
            f"A follow-up is stored until its turn comes, and credentials never are ({', '.join(sorted(brought))}). "
            "Send it without their headers, or as a request of its own when the session is idle.",
        )
    # Counted as an input against the rate only: its run follows the current one of the session, so that the number of
    # concurrent runs does not grow.
    server.chat.limits.count(sender.name)
    await caller_sessions.follow_up(session_id, body.text)
    return Accepted(accepted=True)


@router.post("/sessions/{session_id}/abort", status_code=202)
async def abort_session(session_id: _SessionId, caller_sessions: _CallerSessions) -> Accepted:
    """Abort a session's current run; `accepted` is false if there is none."""
    return Accepted(accepted=await caller_sessions.abort(session_id))


@router.post("/sessions/{session_id}/fork", status_code=201)
async def fork_session(session_id: _SessionId, body: ForkPoint, caller_sessions: _CallerSessions) -> ForkedSession:
    """Copy a session up to the end of a step to a new session, which can be resumed or get another input."""
    return ForkedSession(id=await caller_sessions.fork(session_id, body.seq))


@router.post("/sessions/{session_id}/resume")
async def resume_session(
    session_id: _SessionId,
    caller_sessions: _CallerSessions,
    sender: Annotated[Caller, Depends(caller)],
    server: Annotated[Services, Depends(services)],
    request: Request,
    body: Answer | None = None,
) -> SessionInfo:
    """Resume a session: with an answer to its open interrupts, or after a stop or a crash."""
    with ExitStack() as resources:
        resources.enter_context(server.chat.limits.slot(sender.name))
        credentials = server.chat.runs.host.credentials_of(request)
        answer = body.answer if body else None
        return SessionInfo(
            **await caller_sessions.resume(session_id, answer, credentials=credentials, resources=resources)
        )
