"""Implements the routes that fork a session, and that list the calls which a fork would leave out."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from graph_agent.base.errors import InputError
from graph_agent.interfaces.server import response_models as models
from graph_agent.interfaces.server.admission.body import BodyRoute
from graph_agent.interfaces.server.host import Host
from graph_agent.interfaces.server.parameters import RequestServices, Sender
from graph_agent.interfaces.server.problems import ProblemError
from graph_agent.interfaces.server.sessions import CallerSessions, SessionId

if TYPE_CHECKING:
    from graph_agent.session.forks import LeftOut

FORK = "-fork-"
"""Part of the id of a forked session, between the id of the session that was copied and a random text."""
_ERRORS = models.control_errors({404: "No such session", 409: "The session cannot be forked there"})

router = APIRouter(tags=["Sessions"], responses=_ERRORS, route_class=BodyRoute)


class ForkPoint(BaseModel):
    """The end of a step of a session."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    seq: int = Field(
        ge=-1, le=2**31, description="Index of the last event of the step; -1 to begin before the first message."
    )


@router.post("/sessions/{session_id}/fork", status_code=201)
async def fork_session(
    session_id: SessionId, body: ForkPoint, caller_sessions: CallerSessions, sender: Sender, server: RequestServices
) -> models.ForkedSession:
    """Copy a session up to the end of a step to a new session, which can be resumed or receive another input.

    `left_out` has the calls after the step that may have side effects, and that succeeded or may have taken effect. A
    run of the new session may make them again. The status is 409 if no step ends there.
    """
    # Imported here: it loads the code of exports.
    from graph_agent.session.forks import fork_session

    host, thread = server.chat.runs.host, (await caller_sessions.session(session_id)).id
    # A fork of a fork keeps the name of the origin, so that ids do not grow.
    stem = session_id.partition(FORK)[0][: 128 - len(FORK) - 8]
    fork_id = f"{stem}{FORK}{secrets.token_hex(4)}"
    fork = sender.thread(fork_id)
    try:
        calls = await fork_session(host.saver, host.store, thread, fork, body.seq, origin=session_id, by=sender.person)
    except InputError as error:
        raise ProblemError("conflict", str(error).replace(repr(thread), repr(session_id)), param="seq") from None
    return models.ForkedSession(id=fork_id, left_out=_side_effecting(host, calls))


@router.get("/sessions/{session_id}/fork")
async def preview_fork(
    session_id: SessionId,
    caller_sessions: CallerSessions,
    server: RequestServices,
    seq: Annotated[int, Query(ge=-1, le=2**31, description="Index of the last event that the fork would copy.")],
) -> models.OmittedCalls:
    """Return the calls with possible side effects that a fork would leave out, without forking, so that a person can be
    asked first.
    """
    # Imported here: it loads the code of exports.
    from graph_agent.session.forks import left_out_calls

    host, thread = server.chat.runs.host, (await caller_sessions.session(session_id)).id
    calls = await left_out_calls(host.saver, host.store, thread, seq)
    return models.OmittedCalls(left_out=_side_effecting(host, calls))


def _side_effecting(host: Host, calls: Iterable[LeftOut]) -> list[models.OmittedCall]:
    """Return those of the calls that may have side effects by the host's tools, in the same order, for the response."""
    return [models.OmittedCall(**call) for call in calls if host.kept.builder.writes(call["name"])]
