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
from graph_agent.server.parameters import ChatEndpoint, Services, chat_endpoint, error_responses, services
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
async def create_message(body: MessagesRequest, endpoint: Annotated[ChatEndpoint, Depends(chat_endpoint)]) -> Response:
    """Answer a conversation."""
    return await endpoint.answer(body, read_messages_request, _dialect)


def _dialect(body: MessagesRequest) -> AnthropicDialect:
    return AnthropicDialect(body.model, tokens_of(body))


@router.post("/count_tokens", responses=_ERRORS)
async def count_tokens(
    request: Request,
    body: CountRequest,
    sender: Annotated[Caller, Depends(caller)],
    server: Annotated[Services, Depends(services)],
) -> TokenCount:
    """Estimate the number of tokens of a request, at 4 characters per token."""
    server.check_body(body)
    with server.chat.limits.slot(sender.name):
        return TokenCount(input_tokens=await off_loop(request, tokens_of, body))
