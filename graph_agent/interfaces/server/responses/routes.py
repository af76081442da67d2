"""Defines the routes of the Responses API, and answers requests for a response.

An *attempt* is one of several requests with the same content, by which a client without an idempotency key repeats a
request whose answer it did not receive. A *claim* excludes other requests for the same thing in every process.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request, WebSocket
from starlette.responses import JSONResponse, Response

from graph_agent.interfaces.server import parameters
from graph_agent.interfaces.server import response_models as models
from graph_agent.interfaces.server.admission.body import BodyRoute, run_in_thread
from graph_agent.interfaces.server.admission.gate import admitted_caller
from graph_agent.interfaces.server.chat.attempts import Attempt, attempt_of
from graph_agent.interfaces.server.chat.handler import REPLAYED
from graph_agent.interfaces.server.chat.run_spec import token_of_key, with_key
from graph_agent.interfaces.server.chat.schemas import ChatRequest
from graph_agent.interfaces.server.error_responses import openai_refusal
from graph_agent.interfaces.server.problems import BusySessionError, InvalidRequestError, ProblemError
from graph_agent.interfaces.server.responses import output, schemas
from graph_agent.interfaces.server.responses.background import Background
from graph_agent.interfaces.server.responses.chain import Chains, Key, items_of
from graph_agent.interfaces.server.responses.compaction import compact_stored
from graph_agent.interfaces.server.responses.compaction import count_input_tokens as count_tokens
from graph_agent.interfaces.server.responses.conversations import After, Conversations, PageLimit, PageOrder, item_page
from graph_agent.interfaces.server.responses.ids import record_token, token_of_response
from graph_agent.interfaces.server.responses.keeper import Keeper, OpenConversation
from graph_agent.interfaces.server.responses.records import OPEN_STATUSES, Records
from graph_agent.interfaces.server.responses.schemas import Conversation, read_items
from graph_agent.interfaces.server.responses.websocket import ResponsesSocket
from graph_agent.interfaces.server.sse import EventStream

_ERRORS = models.error_responses(models.OpenAIError)
_READ_ERRORS = models.error_responses(models.OpenAIError, only=(400, 401, 403, 404, 408, 413, 500, 503))
_COUNTED = (400, 401, 403, 404, 408, 413, 429, 500, 503)
_COUNT_ERRORS = models.error_responses(models.OpenAIError, only=_COUNTED)
_COMPACT_ERRORS = models.error_responses(models.OpenAIError, only=(*_COUNTED, 502))
_ResponseId = Annotated[str, Path(description="The response.")]

router = APIRouter(prefix="/v1", tags=["Responses"], route_class=BodyRoute)


@dataclass(frozen=True, slots=True)
class ResponsesEndpoint:
    """One request to the Responses API, without its body."""

    endpoint: parameters.ChatEndpoint
    """The request, its caller and its headers."""
    background: Background
    """The background responses of this process."""
    shows_calls: bool | None
    """Whether a header asks for calls of the agent's own tools in the output; None if there is no such header."""

    async def create(self, body: schemas.CreateResponse) -> Response:
        """Run the request, and return its response: an object, or a stream of events.

        Raises `ProblemError` if the request cannot be answered. A faulty field `messages` is reported as `input`, its
        name here.
        """
        try:
            return await self._create(body)
        except ProblemError as problem:
            # Checks that all chat APIs share use the name of the other APIs.
            problem.param = "input" if problem.param == "messages" else problem.param
            raise

    async def _create(self, body: schemas.CreateResponse, *, branches: bool = False) -> Response:
        """Run the request. If another request continues the same response at the same time, run it again as a branch.

        Args:
            body: The body of the request.
            branches: Whether to continue a previous response in a new session, a branch.

        Raises:
            ProblemError: The request is invalid, or its session cannot be continued.
        """
        try:
            async with AsyncExitStack() as claims:
                answer = await self._answer(body, claims, branches=branches)
                claims.pop_all()  # the answer ends the attempt
                return answer
        except _OvertakenError:
            # Several requests continue one response at the same time: the others are branches of it.
            return await self._create(body, branches=True)

    async def _answer(self, body: schemas.CreateResponse, claims: AsyncExitStack, *, branches: bool) -> Response:
        """Check the request, find its session, and run it, or return a stored response if it repeats an earlier
        request.

        A request with an idempotency key excludes others with this key while its session is chosen. A stored request
        that names neither a key nor a session is an attempt if the agent's tools may write: equal requests wait for its
        end. A background response is returned as soon as its run has begun.

        Args:
            body: The body of the request.
            claims: Stack that receives what must be released if the request is not answered.
            branches: Whether to continue a previous response in a new session.

        Raises:
            ProblemError: The request is invalid, or its session cannot be continued.
            _OvertakenError: Another request continues the same response at the same time.
        """
        server, caller = self.endpoint.services, self.endpoint.caller
        server.check_body(body)
        schemas.check_supported(body)
        host = server.chat.runs.host
        records = Records(host, caller)
        # Parsed before the claim, which excludes other requests while it is held.
        items, conversation, content = await self._read(body, records)
        given_key = self.endpoint.idempotency_key
        key = Key.of(host, caller, given_key, body) if body.is_stored else None
        # A response that is not stored has no record with its token, so that its key makes the token.
        mark = None if body.is_stored else with_key(ChatRequest([]), given_key).mark
        unstored = None if mark is None else token_of_key(caller, mark.id)
        chains = Chains(host, records)
        named = await chains.matching(self._session_id(body), body, content)
        attempt: Attempt | None = None
        if key is None and body.is_stored and named is None and host.may_write:
            parsed = (content.instructions, content.decisions)
            attempt, messages = await attempt_of(
                host, server.chat.runs, caller, self.endpoint.request, content.messages, parsed
            )
            claims.push_async_callback(attempt.aclose)
            content = replace(content, messages=messages)
            if attempt.token is not None and (answer := await self._unsent(body, records, attempt)) is not None:
                return answer
        async with key.claimed() if key is not None else nullcontext():
            first = await key.first() if key is not None else None
            if first is not None and (answer := await self._stored_response(body, records, first["token"])) is not None:
                return answer
            token = first["token"] if first is not None else (attempt and attempt.token) or unstored or record_token()

            async def resolve(session_id: str | None) -> ChatRequest:
                """Return the chat request for the session with this id, or for the session that the request names if it
                is None.
                """
                return await chains.resolve(body, content, token, session_id or named, branches=branches)

            if attempt is not None:
                request = await self._attempted(attempt, resolve, token)
            else:
                request = await (resolve(None) if key is None else key.resolve(first, resolve, token))
        request = replace(request, progress_as_field=self.endpoint.progress_as_field)
        if conversation is not None:
            # The pending items are used up only once the session has them.
            request = replace(request, adds_all=True, before=conversation.consume)
        if self.shows_calls is not None:
            request = replace(request, shows_calls=self.shows_calls)
        if key is None and attempt is None:
            request = await run_in_thread(self.endpoint.request, with_key, request, given_key)
        dialect = output.ResponseDialect(
            output.new_response(body, token),
            token,
            label=host.source.name,
            client_tools=[tool.name or "" for tool in body.tools or [] if tool.type == "function"],
            shows_summary=output.summary_wanted(body) is not None,
            shows_encrypted=schemas.ENCRYPTED_REASONING in (body.include or []),
            queued=bool(body.background),
        )
        keeper = Keeper(records, items, request, dialect, conversation)
        try:
            if body.background:
                queued = await self._run_in_background(request, keeper)
                if attempt is not None:
                    attempt.is_answered = not await self.endpoint.request.is_disconnected()
                    await attempt.aclose()
                return queued
            keep = keeper.keep if body.is_stored else None
            return await server.chat.answer(self.endpoint.request, caller, request, dialect, keep, attempt)
        except ProblemError as problem:
            if branches or named is not None or not await _is_overtaken(request, problem):
                raise
            raise _OvertakenError from problem

    async def _attempted(
        self, attempt: Attempt, resolve: Callable[[str | None], Awaitable[ChatRequest]], token: str
    ) -> ChatRequest:
        """Return the chat request of an attempt, i.e. of one of several equal requests without a key, in its session.

        That is the session of the earlier attempt if it has received the input. The token of the response and its
        session are recorded for the next attempt.

        Args:
            attempt: The attempt.
            resolve: Returns the request for the session with an id or, for None, for the session that it names or
                begins.
            token: Token of the response.
        """
        is_begun = attempt.session is not None and await attempt.has_begun(attempt.session)
        request = await resolve(attempt.session if is_begun else None)
        await attempt.put(token, request.session_id)
        return replace(request, mark=attempt.mark, is_attempt=True)

    async def _unsent(self, body: schemas.CreateResponse, records: Records, attempt: Attempt) -> Response | None:
        """Return the stored response of an earlier, equal request whose client left before it was sent; None if there
        is none.

        None also if that response failed, so that it is run again. If a response is returned, the attempt ends as
        answered.
        """
        record = await records.find(str(attempt.token))
        if record is None or record["response"]["status"] == "failed" or "run_status" in record["response"]:
            return None
        if (answer := await self._stored_response(body, records, str(attempt.token))) is not None:
            attempt.is_answered = True
            await attempt.aclose()
        return answer

    async def count(self, body: schemas.CountInputTokens) -> int:
        """Estimate the input tokens of the request. Nothing is run or stored.

        Raises `ProblemError` if the request is invalid, or the caller has too many active requests.
        """
        server, caller = self.endpoint.services, self.endpoint.caller
        host = server.chat.runs.host
        if body.model:
            server.check_model(body.model)
        server.check_items(body.messages, body.tools)
        schemas.check_supported(body)
        records = Records(host, caller)
        with server.chat.limits.slot(caller.name):
            _, conversation, content = await self._read(body, records)
            chains = Chains(host, records)
            named = await chains.matching(self._session_id(body), body, content)
            request = await chains.resolve(body, content, record_token(), named, branches=False)
            if conversation is not None:
                request = replace(request, adds_all=True)
            return await count_tokens(host, caller, request)

    async def _read(
        self, body: schemas.CreateResponse, records: Records
    ) -> tuple[list[schemas.InputItem], OpenConversation | None, Conversation]:
        """Return the request's items, its conversation (None if it names none), and the content of both as messages.

        Items that clients have added to the conversation since its last response come first. Raises `ProblemError` if
        an item is invalid, or a reference or the conversation is unknown.
        """
        items = await items_of(body.input, records)
        conversation = await self._conversation(body)
        given = [schemas.InputItem.model_validate(item) for item in conversation.pending] if conversation else []
        return items, conversation, await run_in_thread(self.endpoint.request, read_items, [*given, *items])

    async def _stored_response(self, body: schemas.CreateResponse, records: Records, token: str) -> Response | None:
        """Return the stored response with a token, whole or as a stream, with a header that it is repeated.

        None if it is not stored, or still runs in the foreground of another request. A background response that still
        runs is returned as it is now, or as the stream of its events.
        """
        record = await self.background.read(records, token)
        if record is None or (record["response"]["status"] in OPEN_STATUSES and not record["response"]["background"]):
            return None
        response = record["response"]
        headers = {**self.endpoint.services.chat.session_headers(record["session"]), **REPLAYED}
        if not body.stream:
            return JSONResponse(response, headers=headers)
        settings = self.endpoint.services.chat.runs.host.settings
        follows = self.background.follow(records, token)
        return EventStream(
            follows if response["background"] else _each(output.replayed_events(response)),
            send_timeout_s=settings.send_timeout_s,
            headers=headers,
        )

    async def _run_in_background(self, request: ChatRequest, keeper: Keeper) -> Response:
        """Start the run, store the response as queued, and return it, or with `stream` a stream of its events.

        Raises `ProblemError` if the run cannot begin, e.g. because its session is busy.
        """
        chat, caller = self.endpoint.services.chat, self.endpoint.caller
        settings, dialect = chat.runs.host.settings, keeper.dialect
        headers = chat.session_headers(request.session_id)
        async with AsyncExitStack() as stack:
            run = await stack.enter_async_context(chat.started(self.endpoint.request, caller, request))
            # Only now is it certain that the request is not refused.
            await run.begun()
            dialect.response["status"] = "queued"
            queued = dict(dialect.response)
            await self.background.start(stack, run, keeper)
        if not request.stream:
            return JSONResponse(queued, headers=headers)
        return EventStream(
            self.background.follow(keeper.records, dialect.token),
            send_timeout_s=settings.send_timeout_s,
            headers=headers,
        )

    async def _conversation(self, body: schemas.CreateResponse) -> OpenConversation | None:
        """Return the conversation that a request names, with its pending items; None if it names none, or only a
        session.

        Raises `ProblemError` (`not_found`) if the id is neither of a conversation nor of a session.
        """
        if (id_ := body.conversation_id) is None:
            return None
        found = Conversations(self.endpoint.services.chat.runs.host, self.endpoint.caller)
        if not await found.check_session(id_):
            return None
        keys = await found.pending_keys(id_)
        return OpenConversation(found, id_, keys, await found.pending_items(id_, keys))

    def _session_id(self, body: schemas.CreateResponse) -> str | None:
        """Return the id of the session or the conversation that a request names; None if it names none.

        The session of a header or the metadata comes first; it is read only for a stored response. Raises
        `InvalidRequestError` if there is one, and also a conversation or a previous response with an id other than the
        session's.
        """
        named = self.endpoint.session_of((body.metadata or {}).get("session_id")) if body.is_stored else None
        if named is not None:
            for given, field in (
                (body.conversation_id, "conversation"),
                (body.previous_response_id, "previous_response_id"),
            ):
                if given is not None and given != named:
                    raise InvalidRequestError(f"{field} and a session id exclude each other; send one.", field)
        return named or body.conversation_id


class _OvertakenError(Exception):
    """Another request continues the same response at the same time, so that this one must become a branch."""


async def _is_overtaken(request: ChatRequest, problem: ProblemError) -> bool:
    """Return whether a request has failed with `problem` because another request continues its session.

    This is so if the session was busy, or if the input did not fit the session and the previous response is no longer
    the newest.
    """
    if isinstance(problem, BusySessionError):
        return True
    if problem.kind != "invalid" or problem.category is not None or request.before is None:
        return False
    try:
        await request.before()
    except BusySessionError:
        return True
    return False


async def _each(frames: Iterable[str]) -> AsyncGenerator[str, None]:
    """Yield frames as an asynchronous generator."""
    for text in frames:
        yield text


async def records(sender: parameters.Sender, server: parameters.RequestServices) -> Records:
    """Return the stored responses of the request's caller, as a dependency of routes."""
    return Records(server.chat.runs.host, sender)


async def background_responses(request: Request) -> Background:
    """Return the background responses of this process, as a dependency of routes.

    Raises `ProblemError` while the server is starting or stopping.
    """
    return parameters.open_part(request, "background_responses", Background)


_CallerRecords = Annotated[Records, Depends(records)]
_Background = Annotated[Background, Depends(background_responses)]


@router.post(
    "/responses",
    response_model=models.ResponseObject,
    responses={**_ERRORS, 200: {"content": {"text/event-stream": {}}}},
)
async def create_response(
    body: schemas.CreateResponse,
    endpoint: Annotated[parameters.ChatEndpoint, Depends(parameters.chat_endpoint)],
    background: _Background,
    shows_calls: Annotated[
        Literal["true", "false"] | None,
        Header(alias="X-Show-Calls", description="As `show_calls` in the body, for clients that cannot add fields."),
    ] = None,
) -> Response:
    """Answer an input: with an object, with `stream` as a stream of events, or with `background` at once, while the run
    goes on.
    """
    shown = None if shows_calls is None else shows_calls == "true"
    return await ResponsesEndpoint(endpoint, background, shown).create(body)


@router.post("/responses/compact", responses=_COMPACT_ERRORS)
async def compact_conversation(
    body: schemas.CompactResponse, sender: parameters.Sender, server: parameters.RequestServices
) -> models.CompactionObject:
    """Return a conversation as its user messages and one item with a summary by the model, for use as input.

    Nothing is stored.
    """
    return models.CompactionObject(**await compact_stored(server, sender, body))


@router.post("/responses/input_tokens", responses=_COUNT_ERRORS)
async def count_input_tokens(
    body: schemas.CountInputTokens,
    endpoint: Annotated[parameters.ChatEndpoint, Depends(parameters.chat_endpoint)],
    background: _Background,
) -> models.InputTokenCount:
    """Estimate the input tokens of a request, at 4 characters per token. Nothing is run."""
    tokens = await ResponsesEndpoint(endpoint, background, None).count(body)
    return models.InputTokenCount(object="response.input_tokens", input_tokens=tokens)


@router.websocket("/responses")
async def respond_over_websocket(websocket: WebSocket) -> None:
    """Answer requests over one WebSocket, one after the other.

    A connection above the caller's limit of event streams, or while the server is starting or stopping, is refused with
    an HTTP error.
    """
    try:
        server = await parameters.services(websocket)
        host = server.chat.runs.host
        with server.streams.slot(admitted_caller(websocket).name), host.notifier.stop_event() as stopping:
            await websocket.accept()
            await ResponsesSocket(websocket, host.settings, stopping).serve()
    except ProblemError as problem:
        await websocket.send_denial_response(openai_refusal(problem))


@router.get(
    "/responses/{response_id}",
    response_model=models.ResponseObject,
    responses={**_READ_ERRORS, 200: {"content": {"text/event-stream": {}}}},
)
async def get_response(
    response_id: _ResponseId,
    caller_records: _CallerRecords,
    background: _Background,
    sender: parameters.Sender,
    server: parameters.RequestServices,
    stream: Annotated[bool, Query(description="Stream the events of a background response.")] = False,
    starting_after: Annotated[
        int, Query(ge=-1, le=2**31, description="Only events with a higher sequence_number.")
    ] = -1,
) -> Any:
    """Return a stored response or, with `stream`, the past and future events of a background response.

    The status is 404 for an unknown response, 400 to stream one that does not run in the background.
    """
    record = await caller_records.get(response_id)
    token = str(token_of_response(response_id))
    if not stream:
        return (await background.read(caller_records, token) or record)["response"]
    if not record["response"]["background"]:
        raise InvalidRequestError("Only responses with background: true can be streamed again.", "stream")
    return server.followed(sender, background.follow(caller_records, token, starting_after))


@router.post("/responses/{response_id}/cancel", responses=_READ_ERRORS)
async def cancel_response(
    response_id: _ResponseId, caller_records: _CallerRecords, background: _Background
) -> models.ResponseObject:
    """Cancel a background response. One that has ended is returned unchanged. The status is 404 for an unknown
    response, 400 for one that does not run in the background.
    """
    record = await caller_records.get(response_id)
    if not record["response"]["background"]:
        raise InvalidRequestError("Only responses with background: true can be cancelled.", "response_id")
    cancelled = await background.cancel(caller_records, str(token_of_response(response_id)), record)
    return models.ResponseObject(**cancelled["response"])


@router.delete("/responses/{response_id}", responses=_READ_ERRORS)
async def delete_response(response_id: _ResponseId, caller_records: _CallerRecords) -> models.DeletedResponse:
    """Delete a stored response. Its session remains. The status is 409 while the response is in progress."""
    if (await caller_records.get(response_id))["response"]["status"] in OPEN_STATUSES:
        raise ProblemError("conflict", "The response is in progress; cancel it first.", param="response_id")
    await caller_records.delete(str(token_of_response(response_id)))
    return models.DeletedResponse(id=response_id, object="response", deleted=True)


@router.get("/responses/{response_id}/input_items", responses=_READ_ERRORS)
async def list_input_items(
    response_id: _ResponseId,
    caller_records: _CallerRecords,
    limit: PageLimit = 20,
    order: PageOrder = "desc",
    after: After = None,
) -> models.ItemPage:
    """List the input items of a stored response, newest first by default."""
    return item_page((await caller_records.get(response_id))["input"], limit=limit, order=order, after=after)
