"""Provides routes with the server's services, and with what the routes of both chat APIs have in common."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Protocol, TypeVar

from fastapi import Depends, Header, Request
from starlette.requests import HTTPConnection
from starlette.responses import Response

from graph_agent.interfaces.server.admission.body import run_in_thread
from graph_agent.interfaces.server.admission.gate import Caller, RequestLimits, caller
from graph_agent.interfaces.server.chat.handler import ChatDialect, ChatHandler
from graph_agent.interfaces.server.chat.run_spec import with_key
from graph_agent.interfaces.server.chat.schemas import (
    SESSION_ID,
    ChatRequest,
    answer_token_of,
    checked_session_id,
    count_parts,
)
from graph_agent.interfaces.server.problems import ProblemError, stopping
from graph_agent.interfaces.server.readiness import ReadinessCheck
from graph_agent.interfaces.server.sse import EventStream

SESSION_HEADER = "X-Session-Id"
"""Default name of the request header that names a session."""
_AFFINITY_HEADER = "x-session-affinity"
"""Request header in which some clients name their conversation for load balancers."""
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

T = TypeVar("T")
Sender = Annotated[Caller, Depends(caller)]
"""The caller of a request, in the signature of a route."""


class _ChatBody(Protocol):
    """The fields that the bodies of both chat APIs have."""

    @property
    def model(self) -> str:
        """Name of the agent that is to answer."""
        ...

    @property
    def messages(self) -> Sequence[Any]:
        """The conversation, oldest message first, in the form of the API."""
        ...

    @property
    def tools(self) -> Sequence[Any] | None:
        """Tools that the client itself runs, in the form of the API; None if the request has no such field."""
        ...


B = TypeVar("B", bound=_ChatBody)


@dataclass(frozen=True, slots=True)
class Services:
    """Services of an open server."""

    chat: ChatHandler
    """Executes chat requests."""
    streams: RequestLimits
    """Limits of event streams per caller."""
    readiness: ReadinessCheck
    """Checks whether the model, the MCP servers and the database can be used."""

    def check_model(self, name: str) -> None:
        """Raise `ProblemError` (`model`) unless the model that a request names is this server's agent."""
        known = self.chat.runs.host.source.name
        # Clients often have a default model, whose name would hide a wrong address.
        if name != known:
            raise ProblemError("model", f"There is no model {name!r} here; known: {known}.", param="model")

    def check_body(self, body: _ChatBody) -> None:
        """Raise `ProblemError` if a chat request names another model (`model`), or has more messages or tools than the
        settings allow (`too_large`).
        """
        self.check_model(body.model)
        self.check_items(body.messages, body.tools)

    def check_items(self, messages: Sequence[Any], tools: Sequence[Any] | None = None) -> None:
        """Raise `ProblemError` (`too_large`) if a request has more messages (or items), with their parts and calls, or
        more tools than the settings allow.
        """
        settings = self.chat.runs.host.settings
        found = sum(1 + count_parts(each.content) + len(getattr(each, "tool_calls", None) or ()) for each in messages)
        for name, counted, amount, most in (
            ("messages", "messages, content parts and calls", found, settings.max_messages),
            ("tools", "tools", len(tools or ()), settings.max_tools),
        ):
            if amount > most:
                message = f"{name}: the request has {amount} {counted}; it may have {most}. Send fewer."
                raise ProblemError("too_large", message, param=name)

    def followed(self, caller: Caller, frames: AsyncGenerator[str, None]) -> EventStream:
        """Return a response that streams frames, and that counts against the caller's limit of event streams until it
        ends.

        Raises `ProblemError` (`busy`) if the caller has too many streams; then the frames are not used.
        """
        stack = AsyncExitStack()
        stack.enter_context(self.streams.slot(caller.name))
        settings = self.chat.runs.host.settings
        return EventStream(frames, send_timeout_s=settings.send_timeout_s, close=stack.aclose)


async def services(request: HTTPConnection) -> Services:
    """Return the services of the open server, as a dependency of routes.

    Raises `ProblemError` while the server is starting or stopping.

    It is asynchronous because FastAPI would run it in a thread otherwise.
    """
    return open_part(request, "graph_agent", Services)


RequestServices = Annotated[Services, Depends(services)]
"""The server's services, in the signature of a route."""


def open_part(request: HTTPConnection, name: str, kind: type[T]) -> T:
    """Return the object `name` of the application's state, which exists only while the server is open.

    Args:
        request: A request of the application.
        name: Name of the attribute.
        kind: Type of the object.

    Raises:
        ProblemError: The server is starting or stopping.
    """
    found = getattr(request.app.state, name, None)
    if not isinstance(found, kind):
        raise stopping()
    return found


@dataclass(frozen=True, slots=True)
class ChatEndpoint:
    """A request to one of the chat APIs, without its body."""

    request: Request
    caller: Caller
    services: Services
    session_in_header: str | None
    """The session id in the header, which is not validated yet; None if there is none."""
    progress_as_field: bool
    """Whether progress is sent in a field of the answer, in place of comments of the stream."""
    idempotency_key: str | None = None
    """The `Idempotency-Key` of the request; None if there is none."""

    def session_of(self, in_body: str | None) -> str | None:
        """Return the id of the session that the header names, or else `in_body`, the one of the body; None if neither
        does.

        Raises `InvalidRequestError` if that id does not match `SESSION_ID`.
        """
        if self.session_in_header is not None:
            return checked_session_id(self.session_in_header, self.services.chat.runs.host.settings.session_header)
        return None if in_body is None else checked_session_id(in_body)

    async def answer(
        self, body: B, read: Callable[[B], ChatRequest], dialect: Callable[[B, str], ChatDialect]
    ) -> Response:
        """Run the request, and return the response: the whole answer, or a stream that has begun.

        The session that a header names takes precedence over that of the body; a request that is not stored has none.

        Args:
            body: The body of the request.
            read: Converts the body to a `ChatRequest`. A large body is converted in a thread.
            dialect: Returns the object that formats the answer, from the body and a token for the answer's id.

        Raises:
            ProblemError: The body names another model, has too many messages or tools, or is invalid; or the run cannot
                begin, or fails before the response begins.
        """
        self.services.check_body(body)
        chat_request = await run_in_thread(self.request, self._read, body, read)
        answer_format = dialect(body, chat_request.answer_token)
        return await self.services.chat.answer(self.request, self.caller, chat_request, answer_format)

    def _read(self, body: B, read: Callable[[B], ChatRequest]) -> ChatRequest:
        """Return the request that a body and the headers describe; the arguments are those of `answer`.

        A session in the header takes precedence over that of the body, and a request with `store: false` has none.
        Raises `ProblemError` if the body, a session id or the idempotency key is invalid.
        """
        chat_request = read(body)
        # The header precedes the body: proxies can add it.
        session_id = self.session_of(chat_request.session_id) if chat_request.is_stored else None
        if self.idempotency_key is not None:
            chat_request = with_key(chat_request, self.idempotency_key)
        chat_request = replace(chat_request, session_id=session_id, progress_as_field=self.progress_as_field)
        return replace(chat_request, answer_token=answer_token_of(self.caller.name, chat_request))


async def chat_endpoint(
    request: Request,
    sender: Sender,
    server: RequestServices,
    session: SessionHeader = None,
    progress: ProgressHeader = None,
    idempotency_key: IdempotencyKey = None,
) -> ChatEndpoint:
    """Return the parts of a chat request that are not in its body, as a dependency of routes.

    The session is read from the header that the setting `session_header` names; an empty setting reads none. A session
    id that equals the header `x-session-affinity` is ignored, because such a client sends the whole history itself.
    """
    header = server.chat.runs.host.settings.session_header
    if header != SESSION_HEADER:
        session = request.headers.get(header) if header else None
    if session is not None and request.headers.get(_AFFINITY_HEADER) == session:
        # The client names its conversation to load balancers, and sends the whole history itself.
        session = None
    return ChatEndpoint(request, sender, server, session, progress == "field", idempotency_key)
