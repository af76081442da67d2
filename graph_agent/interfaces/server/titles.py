"""Implements the route that gives a session a title."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from graph_agent.interfaces.server import response_models as models
from graph_agent.interfaces.server.admission.body import BodyRoute
from graph_agent.interfaces.server.chat.schemas import VISIBLE
from graph_agent.interfaces.server.parameters import RequestServices, Sender
from graph_agent.interfaces.server.sessions import CallerSessions, SessionBody, SessionId

_ERRORS = models.control_errors({404: "No such session"})

router = APIRouter(tags=["Sessions"], responses=_ERRORS, route_class=BodyRoute)


class Title(SessionBody):
    """What a person names a session."""

    title: str = Field(min_length=1, max_length=200, pattern=VISIBLE, description="The title.")


@router.post("/sessions/{session_id}/title", status_code=202)
async def rename_session(
    session_id: SessionId, body: Title, caller_sessions: CallerSessions, sender: Sender, server: RequestServices
) -> models.Accepted:
    """Give a session a title, also while it runs; its followers receive the event about it, which has the name of the
    person.
    """
    session = await caller_sessions.session(session_id)
    # The name is never the request's own, because the history records it.
    await session.rename(body.title, by=sender.person)
    server.chat.runs.host.notifier.notify(session.id)
    return models.Accepted(accepted=True)
