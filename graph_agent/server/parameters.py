"""What every route is given: the server's parts, and the headers and errors that both chat APIs have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import Header, Request
from pydantic import BaseModel

from graph_agent.server.admission.limits import Limits
from graph_agent.server.admission.problems import ProblemError, stopping
from graph_agent.server.chat.handler import Chat
from graph_agent.server.chat.request import Ask
from graph_agent.server.chat.schemas import SESSION_ID, check_amount
from graph_agent.server.process.readiness import Readiness

SessionHeader = Annotated[
    str | None,
    Header(alias="X-Session-Id", pattern=SESSION_ID, description="The session the server is to keep; none without it."),
]
ProgressHeader = Annotated[
    Literal["comment", "field"] | None,
    Header(alias="X-Progress", description="Where progress is told: in a stream's comments, or as a field."),
]


@dataclass(frozen=True, slots=True)
class Services:
    """An open server's parts."""

    chat: Chat
    streams: Limits
    """How many streams of events each caller may follow."""
    readiness: Readiness

    def check_model(self, name: str) -> None:
        """Check that a request is for the agent there is.

        Raises:
            ProblemError: When it is for another.
        """
        known = self.chat.runs.host.source.name
        if name != known:
            raise ProblemError("model", f"There is no model {name!r} here; known: {known}.", param="model")

    def check_amount(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> None:
        """Check that a chat request has no more messages and tools than one may have.

        Raises:
            ProblemError: When it does.
        """
        settings = self.chat.runs.host.settings
        check_amount(messages, tools, settings.max_messages, settings.max_tools)


async def services(request: Request) -> Services:
    """The server's parts; for routes, as a dependency, asynchronous so that no thread is asked for it.

    Raises:
        ProblemError: When the server is not open.
    """
    here = getattr(request.app.state, "graph_agent", None)
    if not isinstance(here, Services):
        raise stopping()
    return here


def with_headers(ask: Ask, session: str | None, progress: str | None) -> Ask:
    """A request with what its headers say, which goes before what its body says."""
    return replace(ask, session_id=session or ask.session_id, progress_as_field=progress == "field")


def error_responses(model: type[BaseModel], failures: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """The errors of a chat API, for its OpenAPI.

    Args:
        model: The shape that the API gives to its errors.
        failures: Those that each API has a status of its own for, from 500 on, and what they mean.
    """
    refusals = {
        400: "Malformed, or not to be answered as it is",
        401: "No known key",
        403: "Sent by a page of another origin, to a server without keys",
        404: "No such model",
        408: "The body did not come in time",
        413: "The body is too large",
        429: "Too many requests, or the session is busy",
    }
    return {status: {"model": model, "description": what} for status, what in {**refusals, **failures}.items()}
