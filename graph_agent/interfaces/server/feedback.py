"""Implements the route of feedback: a person's thumb and note on an answer of a session."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from graph_agent.base.errors import InputError
from graph_agent.base.history.events import Rating
from graph_agent.base.model_error_text import public_value
from graph_agent.interfaces.server import response_models as models
from graph_agent.interfaces.server.admission.body import BodyRoute
from graph_agent.interfaces.server.parameters import RequestServices, Sender
from graph_agent.interfaces.server.problems import ProblemError
from graph_agent.interfaces.server.responses.ids import token_of_answer
from graph_agent.interfaces.server.responses.records import Records
from graph_agent.interfaces.server.sessions import CallerSessions, SessionBody, SessionId
from graph_agent.session.feedback import answer_at

_ERRORS = models.control_errors({404: "No such session, or no such answer"})

router = APIRouter(tags=["Sessions"], responses=_ERRORS, route_class=BodyRoute)


class Rated(SessionBody):
    """A person's rating of an answer."""

    rating: Rating
    answer: int | str | None = Field(
        None,
        description="The answer: seq of its `agent_response` event, id of its input, id of its message, or the id with "
        "which an API returned it (`chatcmpl-…`, `resp_…`, `msg_…`); the newest answer by default.",
    )
    note: str = Field("", max_length=4000, description="What the person wrote.")
    evaluate: bool = Field(False, description="Whether the answer is to become a case of an evaluation.")


@router.post("/sessions/{session_id}/feedback", status_code=201)
async def rate_answer(
    session_id: SessionId, body: Rated, caller_sessions: CallerSessions, sender: Sender, server: RequestServices
) -> models.Feedback:
    """Rate an answer of a session, also while the session runs. The model never receives the rating. The status is 404
    if there is no such answer.
    """
    session = await caller_sessions.session(session_id)
    given = body.model_dump()
    host = server.chat.runs.host
    if isinstance(body.answer, str) and (token := token_of_answer(body.answer)) is not None:
        record = await Records(host, sender).find(token)
        if record is not None and record["session"] == session_id and record["checkpoint"] is not None:
            # Exact also for a response that continued the input of another, after an approval.
            answer = await answer_at(host.saver, session.id, record["checkpoint"])
            given["answer"] = body.answer if answer is None else answer
    try:
        # The name is never the request's own, because the history records it.
        event = await session.feedback(**given, by=sender.person)
    except InputError as error:
        text = str(error).replace(repr(session.id), repr(session_id))
        raise ProblemError("not_found", text, param="answer") from None
    host.notifier.notify(session.id)
    return models.Feedback(event={**public_value(event), "session_id": session_id})
