"""Provides routes with the server's services, and with what the routes of both chat APIs have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, Protocol, TypeVar

from fastapi import Depends, Header, Request
from pydantic import BaseModel
from starlette.requests import HTTPConnection
from starlette.responses import Response

from graph_agent.server.admission.body import run_in_thread
from graph_agent.server.admission.gate import Caller, Limits, caller
from graph_agent.server.chat.handler import Chat, ChatDialect
from graph_agent.server.chat.run_spec import with_key
from graph_agent.server.chat.schemas import SESSION_ID, ChatRequest, check_amount, checked_session_id
from graph_agent.server.monitoring.readiness import Readiness
from graph_agent.server.problems import ProblemError, stopping

SESSION_HEADER = "X-Session-Id"
"""The default name of the header that names a session."""
_AFFINITY_HEADER = "x-session-affinity"
SessionHeader = Annotated[
    str | None,
    Header(
        alias=SESSION_HEADER,
        json_schema_extra={"pattern": SESSION_ID},
        description="Id of the session to continue or create; without it, no session is kept.",
    ),
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description=(
            "Chosen by the client for one request: the request is run once, and the same key again gets its answer. "
            "1 to 255 printable characters, such as a UUID."
        ),
    ),
]
ProgressHeader = Annotated[
    Literal["comment", "field"] | None,
    Header(alias="X-Progress", description="Where progress is sent: in a stream's comments, or as a field."),
]


class ChatBody(Protocol):
    """The fields that the bodies of both chat APIs have."""

    @property
    def model(self) -> str:
        """The name of the agent."""
        ...

    @property
    def messages(self) -> Sequence[Any]:
        """The conversation."""
        ...

    @property
    def tools(self) -> Sequence[Any] | None:
        """The caller's tools."""
        ...


B = TypeVar("B", bound=ChatBody)
T = TypeVar("T")


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

    def check_body(self, body: ChatBody) -> None:
        """Check the model of a chat request, and the number of its messages and tools.

        Raises:
            ProblemError: If it names another model, or has more than the settings allow.
        """
        self.check_model(body.model)
        self.check_items(body.messages, body.tools)

    def check_items(self, messages: Sequence[Any], tools: Sequence[Any] | None = None) -> None:
        """Check the number of a request's messages, or items, and tools.

        Raises:
            ProblemError: If there are more than the settings allow.
        """
        settings = self.chat.runs.host.settings
        check_amount(messages, tools, settings.max_messages, settings.max_tools)


async def services(request: HTTPConnection) -> Services:
    """Return the server's services; a dependency of routes, async because FastAPI runs sync ones in a thread.

    Raises:
        ProblemError: If the server is not open.
    """
    return open_part(request, "graph_agent", Services)


def open_part(request: HTTPConnection, name: str, kind: type[T]) -> T:
    """Return a part of the server that it has while it is open.

    Args:
        name: The part's name in the application's state.

    Raises:
        ProblemError: If the server is not open.
    """
    found = getattr(request.app.state, name, None)
    if not isinstance(found, kind):
        raise stopping()
    return found


@dataclass(frozen=True, slots=True)
class ChatEndpoint:
    """A chat request of either API, except its body."""

    request: Request
    caller: Caller
    services: Services
    session_in_header: str | None
    progress_as_field: bool
    idempotency_key: str | None = None
    """The key in the headers; None without one."""

    def session_of(self, in_body: str | None) -> str | None:
        """Return the session of the request: that of the header, or else of the body; None without a session.

        Raises:
            ProblemError: If it is no session id.
        """
        if self.session_in_header is not None:
            return checked_session_id(self.session_in_header, self.services.chat.runs.host.settings.session_header)
        return None if in_body is None else checked_session_id(in_body)

    async def answer(self, body: B, read: Callable[[B], ChatRequest], dialect: Callable[[B], ChatDialect]) -> Response:
        """Answer the request.

        Args:
            read: Converts the body; called in a thread for a large body.
            dialect: Creates the format of the answer; called as `read`.

        Raises:
            ProblemError: If it cannot be answered.
        """
        self.services.check_body(body)
        chat_request = await run_in_thread(self.request, read, body)
        chat_request = replace(
            chat_request,
            session_id=self.session_of(chat_request.session_id) if chat_request.is_stored else None,
            progress_as_field=self.progress_as_field,
        )
        chat_request = await run_in_thread(self.request, partial(with_key, key=self.idempotency_key), chat_request)
        answer_format = await run_in_thread(self.request, dialect, body)
        return await self.services.chat.answer(self.request, self.caller, chat_request, answer_format)


async def chat_endpoint(
    request: Request,
    sender: Annotated[Caller, Depends(caller)],
    server: Annotated[Services, Depends(services)],
    session: SessionHeader = None,
    progress: ProgressHeader = None,
    idempotency_key: IdempotencyKey = None,
) -> ChatEndpoint:
    """Return a chat request except its body; a dependency of routes."""
    header = server.chat.runs.host.settings.session_header
    if header != SESSION_HEADER:
        session = request.headers.get(header) if header else None
    if session is not None and request.headers.get(_AFFINITY_HEADER) == session:
        # The client names its conversation to load balancers, and sends the whole history itself.
        session = None
    return ChatEndpoint(request, sender, server, session, progress == "field", idempotency_key)


_ERRORS = {
    400: "Malformed, or not answerable",
    401: "Missing or unknown API key",
    403: "Sent by a page of another origin to a server without keys",
    404: "No such model",
    408: "The body did not arrive in time",
    409: "Another request of the session came first: it answered the question, or replaced the one with this key",
    413: "The body is too large",
    422: "The idempotency key belongs to a different request",
    429: "Too many requests, or the session is busy",
    500: "The server failed",
    502: "The model's provider failed",
    503: "The server is stopping, another process holds the session, or the database is locked",
    507: "The database is full",
}


def error_responses(model: type[BaseModel], own: Mapping[int, str] | None = None) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of a chat API, for its OpenAPI.

    Args:
        own: HTTP status → description of the errors that this API has in a way of its own; None if there are none.
    """
    return {status: {"model": model, "description": what} for status, what in {**_ERRORS, **(own or {})}.items()}
