"""Implements the routes of OpenAI's Responses API."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request, WebSocket
from starlette.responses import Response

from graph_agent.server.admission.body import BodyRoute
from graph_agent.server.admission.gate import Caller, admitted_caller, caller
from graph_agent.server.parameters import ChatEndpoint, Services, chat_endpoint, error_responses, open_part, services
from graph_agent.server.problems import ProblemError, openai_refusal
from graph_agent.server.response_models import (
    CompactionObject,
    DeletedResponse,
    InputTokenCount,
    ItemPage,
    OpenAIError,
    ResponseObject,
)
from graph_agent.server.responses.background import Background
from graph_agent.server.responses.compaction import compact
from graph_agent.server.responses.conversations import After, Limit, Order, page_of
from graph_agent.server.responses.endpoint import ResponsesEndpoint
from graph_agent.server.responses.records import OPEN, Records, token_of_response
from graph_agent.server.responses.schemas import CompactResponse, CountInputTokens, CreateResponse
from graph_agent.server.responses.websocket import ResponsesSocket
from graph_agent.server.sse import EventStream

_ERRORS = error_responses(
    OpenAIError,
    {
        500: "The server failed",
        502: "The model's provider failed",
        503: "The server is stopping, another process holds the session, or the database is locked",
        507: "The database is full",
    },
)
_READ_ERRORS: dict[int | str, dict[str, Any]] = {
    status: error for status, error in _ERRORS.items() if status in (400, 401, 403, 404, 408, 413, 500, 503)
}
_COMPACT_ERRORS = {status: error for status, error in _ERRORS.items() if status not in (409, 422, 507)}
_COUNT_ERRORS = {status: error for status, error in _COMPACT_ERRORS.items() if status != 502}
_ResponseId = Annotated[str, Path(description="The response.")]

router = APIRouter(prefix="/v1", tags=["Responses"], route_class=BodyRoute)


async def records(
    sender: Annotated[Caller, Depends(caller)], server: Annotated[Services, Depends(services)]
) -> Records:
    """Return the responses of the request's caller; a dependency of routes."""
    return Records(server.chat.runs.host, sender)


async def background_responses(request: Request) -> Background:
    """Return the background responses of this process; a dependency of routes.

    Raises:
        ProblemError: If the server is not open.
    """
    return open_part(request, "background_responses", Background)


_CallerRecords = Annotated[Records, Depends(records)]
_Background = Annotated[Background, Depends(background_responses)]


@router.post(
    "/responses", response_model=ResponseObject, responses={**_ERRORS, 200: {"content": {"text/event-stream": {}}}}
)
async def create_response(
    body: CreateResponse,
    endpoint: Annotated[ChatEndpoint, Depends(chat_endpoint)],
    background: _Background,
    shows_calls: Annotated[
        Literal["true", "false"] | None,
        Header(alias="X-Show-Calls", description="As `show_calls` in the body, for clients that cannot add fields."),
    ] = None,
) -> Response:
    """Answer an input."""
    shown = None if shows_calls is None else shows_calls == "true"
    return await ResponsesEndpoint(endpoint, background, shown).create(body)


@router.post("/responses/compact", responses=_COMPACT_ERRORS)
async def compact_conversation(
    body: CompactResponse,
    sender: Annotated[Caller, Depends(caller)],
    server: Annotated[Services, Depends(services)],
) -> CompactionObject:
    """Replace a conversation by its user messages and a summary."""
    return CompactionObject(**await compact(server, sender, body))


@router.post("/responses/input_tokens", responses=_COUNT_ERRORS)
async def count_input_tokens(
    body: CountInputTokens, endpoint: Annotated[ChatEndpoint, Depends(chat_endpoint)], background: _Background
) -> InputTokenCount:
    """Estimate the input tokens of a request, at 4 characters per token, without running it."""
    tokens = await ResponsesEndpoint(endpoint, background, None).count(body)
    return InputTokenCount(object="response.input_tokens", input_tokens=tokens)


@router.websocket("/responses")
async def respond_over_websocket(websocket: WebSocket) -> None:
    """Answer inputs over one connection, one after the other."""
    try:
        server = await services(websocket)
        host = server.chat.runs.host
        with server.streams.slot(admitted_caller(websocket).name), host.notifier.stop_event() as stopping:
            await websocket.accept()
            await ResponsesSocket(websocket, host.settings, stopping).serve()
    except ProblemError as problem:
        await websocket.send_denial_response(openai_refusal(problem))


@router.get(
    "/responses/{response_id}",
    response_model=ResponseObject,
    responses={**_READ_ERRORS, 200: {"content": {"text/event-stream": {}}}},
)
async def get_response(
    response_id: _ResponseId,
    caller_records: _CallerRecords,
    background: _Background,
    sender: Annotated[Caller, Depends(caller)],
    server: Annotated[Services, Depends(services)],
    stream: Annotated[bool, Query(description="Stream the events of a background response.")] = False,
    starting_after: Annotated[
        int, Query(ge=-1, le=2**31, description="Only events with a higher sequence_number.")
    ] = -1,
) -> Any:
    """Return a stored response, or stream its events."""
    record = await caller_records.get(response_id)
    token = str(token_of_response(response_id))
    if not stream:
        return (await background.read(caller_records, token) or record)["response"]
    if not record["response"]["background"]:
        raise ProblemError("invalid", "Only responses with background: true can be streamed again.", param="stream")
    settings = server.chat.runs.host.settings
    async with AsyncExitStack() as stack:
        stack.enter_context(server.streams.slot(sender.name))
        return EventStream(
            background.follow(caller_records, token, starting_after, settings.keepalive_s),
            send_timeout_s=settings.send_timeout_s,
            close=stack.pop_all().aclose,
        )


@router.post("/responses/{response_id}/cancel", responses=_READ_ERRORS)
async def cancel_response(
    response_id: _ResponseId, caller_records: _CallerRecords, background: _Background
) -> ResponseObject:
    """Cancel a background response; one that has ended is returned unchanged."""
    record = await caller_records.get(response_id)
    if not record["response"]["background"]:
        raise ProblemError("invalid", "Only responses with background: true can be cancelled.", param="response_id")
    cancelled = await background.cancel(caller_records, str(token_of_response(response_id)), record)
    return ResponseObject(**cancelled["response"])


@router.delete("/responses/{response_id}", responses=_READ_ERRORS)
async def delete_response(response_id: _ResponseId, caller_records: _CallerRecords) -> DeletedResponse:
    """Delete a stored response; its session remains."""
    if (await caller_records.get(response_id))["response"]["status"] in OPEN:
        raise ProblemError("conflict", "The response is in progress; cancel it first.", param="response_id")
    await caller_records.delete(str(token_of_response(response_id)))
    return DeletedResponse(id=response_id, object="response", deleted=True)


@router.get("/responses/{response_id}/input_items", responses=_READ_ERRORS)
async def list_input_items(
    response_id: _ResponseId,
    caller_records: _CallerRecords,
    limit: Limit = 20,
    order: Order = "desc",
    after: After = None,
) -> ItemPage:
    """List the input items of a stored response."""
    return page_of((await caller_records.get(response_id))["input"], limit=limit, order=order, after=after)
