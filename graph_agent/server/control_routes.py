"""The sessions of whoever asks: their history, and a hand on them while they run."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response

from graph_agent.server.gate import caller
from graph_agent.server.keys import Caller
from graph_agent.server.off_loop import BodyRoute
from graph_agent.server.parameters import Services, services
from graph_agent.server.problems import ProblemError
from graph_agent.server.replies import Accepted, ControlError, EventList, SessionIds, SessionInfo
from graph_agent.server.schemas import SESSION_ID, clean_body
from graph_agent.server.sessions import Sessions
from graph_agent.server.sse import EventStream

_WORDS = {
    400: "Malformed",
    401: "No known key",
    403: "Sent by a page of another origin, to a server without keys",
    404: "No such session",
    408: "The body did not come in time",
    409: "The session cannot do that now",
    413: "The body is too large",
    429: "Too many requests",
    500: "We failed",
    503: "The server is being stopped, another process has the session, or the database is locked",
    507: "The database is full",
}
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ControlError, "description": what} for status, what in _WORDS.items()
}
_SessionId = Annotated[str, Path(pattern=SESSION_ID, description="The session.")]

router = APIRouter(tags=["Sessions"], responses=_ERRORS, route_class=BodyRoute)


class Words(BaseModel):
    """Something to say to a session."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    text: str = Field(min_length=1, pattern=r"\S")

    _clean = model_validator(mode="before")(clean_body)


class Answer(BaseModel):
    """What a session waits for."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    answer: Any = Field(None, description="The answer, or interrupt id → answer; absent after a stop or a crash.")

    _clean = model_validator(mode="before")(clean_body)


def sessions(who: Annotated[Caller, Depends(caller)], here: Annotated[Services, Depends(services)]) -> Sessions:
    """The sessions of whoever asks; for routes, as a dependency."""
    return Sessions(here.chat.runs, who)


_Mine = Annotated[Sessions, Depends(sessions)]


@router.get("/memory/sessions")
async def list_sessions(
    mine: _Mine,
    limit: Annotated[int | None, Query(ge=1, le=10_000, description="How many at most; all without it.")] = None,
    after: Annotated[str | None, Query(description="Only those behind this one in the list; it must be in it.")] = None,
) -> SessionIds:
    """List the sessions, the one begun last first."""
    return SessionIds(sessions=await mine.ids(limit, after))


@router.get(
    "/memory/sessions/{session_id}/events",
    response_model=EventList,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def get_events(
    session_id: _SessionId,
    mine: _Mine,
    who: Annotated[Caller, Depends(caller)],
    here: Annotated[Services, Depends(services)],
    type: Annotated[list[str] | None, Query(description="Types of events; all without it.")] = None,
    after: Annotated[int, Query(ge=-1, le=2**31, description="Only events with a higher seq.")] = -1,
    follow: Annotated[bool, Query(description="Whether to go on with those to come, as SSE, up to an `end`.")] = False,
) -> Any:
    """Give a session's history, oldest first."""
    if not follow:
        return EventList(events=await mine.events(session_id, type or [], after))
    settings = here.chat.runs.host.settings
    async with AsyncExitStack() as stack:
        stack.enter_context(here.streams.held(who.name))
        return EventStream(
            await mine.follow(session_id, type or [], after, settings.keepalive_s),
            send_timeout_s=settings.send_timeout_s,
            close=stack.pop_all().aclose,
        )


@router.get("/sessions/{session_id}")
async def get_session(session_id: _SessionId, mine: _Mine) -> SessionInfo:
    """Say where a session is."""
    return SessionInfo(**await mine.info(session_id))


@router.delete("/sessions/{session_id}", status_code=204)
async def delete_session(session_id: _SessionId, mine: _Mine) -> Response:
    """Throw a session away."""
    await mine.delete(session_id)
    return Response(status_code=204)


@router.post("/sessions/{session_id}/steer", status_code=202)
async def steer_session(session_id: _SessionId, body: Words, mine: _Mine) -> Accepted:
    """Say something to a session while it works; it is heard before the next plan."""
    await mine.steer(session_id, body.text)
    return Accepted(accepted=True)


@router.post("/sessions/{session_id}/follow_up", status_code=202)
async def follow_up_session(
    session_id: _SessionId,
    body: Words,
    mine: _Mine,
    request: Request,
    who: Annotated[Caller, Depends(caller)],
    here: Annotated[Services, Depends(services)],
) -> Accepted:
    """Give a session its next input, for when it has answered the one it works on; the events hold its answer."""
    if brought := here.chat.runs.host.credentials_of(request):
        raise ProblemError(
            "invalid",
            f"A follow-up is stored until its turn comes, and credentials never are ({', '.join(sorted(brought))}). "
            "Send it without their headers, or as a request of its own when the session is idle.",
        )
    # It counts as the input that it becomes. Its run is not counted among those at the same time: it takes the place of
    # the run before it in its session.
    here.chat.limits.count(who.name)
    await mine.follow_up(session_id, body.text)
    return Accepted(accepted=True)


@router.post("/sessions/{session_id}/abort", status_code=202)
async def abort_session(session_id: _SessionId, mine: _Mine) -> Accepted:
    """Stop what a session works on; `accepted` is false when it works on nothing."""
    return Accepted(accepted=await mine.abort(session_id))


@router.post("/sessions/{session_id}/resume")
async def resume_session(
    session_id: _SessionId,
    mine: _Mine,
    who: Annotated[Caller, Depends(caller)],
    here: Annotated[Services, Depends(services)],
    request: Request,
    body: Answer | None = None,
) -> SessionInfo:
    """Go on where a session stopped: with an answer it waits for, or after a stop or a crash."""
    with ExitStack() as place:
        place.enter_context(here.chat.limits.held(who.name))
        credentials = here.chat.runs.host.credentials_of(request)
        answer = body.answer if body else None
        return SessionInfo(**await mine.resume(session_id, answer, credentials=credentials, place=place))
