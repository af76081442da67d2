"""Implements the route that returns a rated answer as a case of an evaluation.

The server writes no file: a case has what a person wrote to the agent, and which folder an evaluation is in is known
to its owner only. The caller saves the case.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Annotated

from fastapi import APIRouter, Query

from graph_agent.interfaces.server import response_models as models
from graph_agent.interfaces.server.parameters import RequestServices
from graph_agent.interfaces.server.problems import ProblemError
from graph_agent.interfaces.server.sessions import CallerSessions, SessionId

_ERRORS = models.control_errors({404: "No such session, or no such answer with feedback"})

router = APIRouter(tags=["Sessions"], responses=_ERRORS)


@router.get("/sessions/{session_id}/case")
async def get_case(
    session_id: SessionId,
    caller_sessions: CallerSessions,
    server: RequestServices,
    answer: Annotated[
        int | None,
        Query(
            ge=0,
            le=2**31,
            description="seq of the `agent_response` event, which has feedback; by default the newest answer with "
            "feedback, or the newest one if none has.",
        ),
    ] = None,
) -> models.EvaluationCase:
    """Return an answer as a case of `graph-agent eval`, the same as `graph-agent feedback --case` writes.

    The status is 404 if the named answer has no feedback, or the session has no answer.
    """
    session = await caller_sessions.session(session_id)
    # Imported here: it takes long, and most servers are never asked for a case.
    evaluation = await asyncio.to_thread(import_module, "graph_agent.devtools.cases_from_feedback")
    found = await evaluation.case_for_client(server.chat.runs.host.saver, session.id, answer, session_id)
    if found is None:
        why = "The session has no answer yet." if answer is None else f"Answer {answer} has no feedback; rate it first."
        raise ProblemError("not_found", why, param="answer")
    return models.EvaluationCase(name=found[0], yaml=found[1])
