"""Implements the routes to the messages that wait in a session: steering and follow-ups that no run has processed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path

from graph_agent.interfaces.server import response_models as models
from graph_agent.interfaces.server.sessions import CallerSessions, SessionId

_ERRORS = models.control_errors({404: "No such session"})

router = APIRouter(tags=["Sessions"], responses=_ERRORS)


@router.get("/sessions/{session_id}/queue")
async def list_queued_messages(session_id: SessionId, caller_sessions: CallerSessions) -> models.QueuedMessages:
    """List the steering messages and follow-ups of a session that no run has read yet, oldest first."""
    queued = [asdict(each) for each in await (await caller_sessions.session(session_id)).queued()]
    return models.QueuedMessages(queued=[{**each, "sent_at": each["sent_at"].isoformat()} for each in queued])


@router.delete("/sessions/{session_id}/queue/{message_id}")
async def withdraw_queued_message(
    session_id: SessionId,
    message_id: Annotated[str, Path(max_length=64, description="The id of the queued message.")],
    caller_sessions: CallerSessions,
) -> models.Accepted:
    """Withdraw a queued message before a run reads it. `accepted` is false if it is no longer queued."""
    return models.Accepted(accepted=await (await caller_sessions.session(session_id)).withdraw(message_id))
