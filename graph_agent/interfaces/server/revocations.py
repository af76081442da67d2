"""Implements the route by which a person takes back the approval of all calls of a kind in a session."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from graph_agent.base.errors import InputError
from graph_agent.interfaces.server import response_models as models
from graph_agent.interfaces.server.admission.body import BodyRoute
from graph_agent.interfaces.server.parameters import RequestServices, Sender
from graph_agent.interfaces.server.problems import ProblemError
from graph_agent.interfaces.server.sessions import CallerSessions, SessionBody, SessionId

_ERRORS = models.control_errors({404: "No such session, or no such approval"})

router = APIRouter(tags=["Sessions"], responses=_ERRORS, route_class=BodyRoute)


class CallKind(SessionBody):
    """The calls that a person has approved for the whole session."""

    name: str = Field(min_length=1, description="Name of the calls, as in the event `approval_decision`.")
    delegate: str = Field("", description="The delegate whose calls they are; empty for the agent itself.")


@router.post("/sessions/{session_id}/revoke", status_code=202)
async def revoke_approval(
    session_id: SessionId, body: CallKind, caller_sessions: CallerSessions, sender: Sender, server: RequestServices
) -> models.Accepted:
    """Take back an approval that holds for all calls of a kind in a session, also while the session runs.

    Later calls of this kind wait for an approval again. The history has an event about it, with the name of the person.
    The status is 404 if there is no such approval.
    """
    session = await caller_sessions.session(session_id)
    try:
        # The name is never the request's own, because the history records it.
        await session.revoke_approval(body.name, delegate=body.delegate, by=sender.person)
    except InputError as error:
        text = str(error).replace(repr(session.id), repr(session_id))
        raise ProblemError("not_found", text, param="name") from None
    server.chat.runs.host.notifier.notify(session.id)
    return models.Accepted(accepted=True)
