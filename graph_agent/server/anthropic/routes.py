"""Routes of Anthropic's API: messages and token counts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from graph_agent.server.admission.gate import caller
from graph_agent.server.admission.keys import Caller
from graph_agent.server.admission.off_loop import BodyRoute, off_loop
from graph_agent.server.anthropic.requests import CountRequest, MessagesRequest, read_messages_request, tokens_of
from graph_agent.server.anthropic.responses import AnthropicDialect
from graph_agent.server.parameters import (
    ProgressHeader,
    Services,
    SessionHeader,
    error_responses,
    services,
    with_headers,
)
from graph_agent.server.response_models import AnthropicError, AnthropicMessage, TokenCount

_ERRORS = error_responses(
    AnthropicError,
    {
        500: "The server failed",
        502: "The model's provider failed",
        503: "Another process holds the session, or the database is locked",
        507: "The database is full",
        529: "The server is stopping",
    },
)

router = APIRouter(prefix="/v1/messages", tags=["Anthropic"], route_class=BodyRoute)


@router.post(
    "",
    response_model=AnthropicMessage,
    responses={**_ERRORS, 200: {"content": {"text/event-stream": {}}}},
)
async def create_message(
    request: Request,
    body: MessagesRequest,
    sender: Annotated[Caller, Depends(caller)],
    server: Annotated[Services, Depends(services)],
    session: SessionHeader = None,
    progress: ProgressHeader = None,
) -> Response:
    """Answer a conversation."""
    server.check_model(body.model)
    server.check_amount(body.messages, body.tools)
    chat_request = with_headers(await off_loop(request, read_messages_request, body), session, progress)
    tokens = await off_loop(request, tokens_of, body)
    return await server.chat.answer(request, sender, chat_request, AnthropicDialect(body.model, tokens))


@router.post("/count_tokens", responses=_ERRORS)
async def count_tokens(
    request: Request,
    body: CountRequest,
    sender: Annotated[Caller, Depends(caller)],
    server: Annotated[Services, Depends(services)],
) -> TokenCount:
    """Estimate the number of tokens of a request, at 4 characters per token."""
    server.check_model(body.model)
    server.check_amount(body.messages, body.tools)
    with server.chat.limits.held(sender.name):
        return TokenCount(input_tokens=await off_loop(request, tokens_of, body))
