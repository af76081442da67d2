"""Routes of OpenAI's API: chat completions and models."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from starlette.responses import Response

from graph_agent.server.admission.off_loop import BodyRoute
from graph_agent.server.openai.requests import ChatCompletionRequest, read_chat_request
from graph_agent.server.openai.responses import OpenAIDialect
from graph_agent.server.parameters import ChatEndpoint, Services, chat_endpoint, error_responses, services
from graph_agent.server.response_models import Completion, Model, ModelList, OpenAIError

_ERRORS = error_responses(
    OpenAIError,
    {
        500: "The server failed",
        502: "The model's provider failed",
        503: "The server is stopping, another process holds the session, or the database is locked",
        507: "The database is full",
    },
)

router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=BodyRoute)


@router.post(
    "/chat/completions",
    response_model=Completion,
    responses={**_ERRORS, 200: {"content": {"text/event-stream": {}}}},
)
async def create_chat_completion(
    body: ChatCompletionRequest, endpoint: Annotated[ChatEndpoint, Depends(chat_endpoint)]
) -> Response:
    """Answer a conversation."""
    return await endpoint.answer(body, read_chat_request, _dialect)


def _dialect(body: ChatCompletionRequest) -> OpenAIDialect:
    return OpenAIDialect(body.model, include_usage=bool(body.stream_options and body.stream_options.include_usage))


_MODEL_ERRORS: dict[int | str, dict[str, Any]] = {
    status: error for status, error in _ERRORS.items() if status in (400, 401, 403, 404, 408, 413, 503)
}


@router.get("/models", responses=_MODEL_ERRORS)
async def list_models(server: Annotated[Services, Depends(services)]) -> ModelList:
    """List the models; the only model is this agent."""
    model = _model(server)
    return ModelList(object="list", data=[model], has_more=False, first_id=model.id, last_id=model.id)


@router.get("/models/{model_id}", responses=_MODEL_ERRORS)
async def get_model(
    model_id: Annotated[str, Path(description="The agent's name.")], server: Annotated[Services, Depends(services)]
) -> Model:
    """Describe one model."""
    server.check_model(model_id)
    return _model(server)


def _model(server: Services) -> Model:
    host = server.chat.runs.host
    return Model(
        id=host.source.name,
        object="model",
        created=host.started,
        owned_by="graph-agent",
        type="model",
        display_name=host.source.description or host.source.name,
        created_at=datetime.fromtimestamp(host.started, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        lifecycle="active",
    )
