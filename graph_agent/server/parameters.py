"""Dependencies of routes: the server's services, and the headers and errors common to both chat APIs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import Header, Request
from pydantic import BaseModel

from graph_agent.server.admission.limits import Limits
from graph_agent.server.chat.handler import Chat
from graph_agent.server.chat.request import ChatRequest
from graph_agent.server.chat.schemas import SESSION_ID, check_amount
from graph_agent.server.errors.problems import ProblemError, stopping
from graph_agent.server.monitoring.readiness import Readiness

SessionHeader = Annotated[
    str | None,
    Header(
        alias="X-Session-Id",
        pattern=SESSION_ID,
        description="Id of the session to continue or create; without it, no session is kept.",
    ),
]
ProgressHeader = Annotated[
    Literal["comment", "field"] | None,
    Header(alias="X-Progress", description="Where progress is sent: in a stream's comments, or as a field."),
]


@dataclass(frozen=True, slots=True)
class Services:
    """Services of an open server."""

    chat: Chat
    streams: Limits
    """Limits of event streams per caller."""
    readiness: Readiness

    def check_model(self, name: str) -> None:
        """Check that a request names this server's agent as its model.

        Raises:
            ProblemError: If it names another model.
        """
        known = self.chat.runs.host.source.name
        if name != known:
            raise ProblemError("model", f"There is no model {name!r} here; known: {known}.", param="model")

    def check_amount(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> None:
        """Check the number of messages and tools of a chat request.

        Raises:
            ProblemError: If there are more than the settings allow.
        """
        settings = self.chat.runs.host.settings
        check_amount(messages, tools, settings.max_messages, settings.max_tools)


async def services(request: Request) -> Services:
    """Return the server's services; a dependency of routes, async because FastAPI runs sync ones in a thread.

    Raises:
        ProblemError: If the server is not open.
    """
    found = getattr(request.app.state, "graph_agent", None)
    if not isinstance(found, Services):
        raise stopping()
    return found


def with_headers(request: ChatRequest, session: str | None, progress: str | None) -> ChatRequest:
    """Return a request with the values of its headers, which override those of its body."""
    return replace(request, session_id=session or request.session_id, progress_as_field=progress == "field")


def error_responses(model: type[BaseModel], failures: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of a chat API, for its OpenAPI.

    Args:
        model: The API's schema of errors.
        failures: HTTP status → description of the errors from 500 up, which differ between the APIs.
    """
    refusals = {
        400: "Malformed, or not answerable",
        401: "Missing or unknown API key",
        403: "Sent by a page of another origin to a server without keys",
        404: "No such model",
        408: "The body did not arrive in time",
        413: "The body is too large",
        429: "Too many requests, or the session is busy",
    }
    return {status: {"model": model, "description": what} for status, what in {**refusals, **failures}.items()}
